"""Compares a tiny model of transformers with its bundle, as every export does.

The weights are random and large, norms and biases included, so that an ignored weight shows. The
witness asks transformers about whole texts. The reference that it agrees with is also that of the
certificate, whose replay adds cached steps, chunks and batches.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from tests.modeling.tiny_models import reference_model
from tests.tiny.processors import processor_of

from ortolan.export.witness.brief import Brief, Finding
from ortolan.export.witness.child import answers
from ortolan.export.witness.compare import Comparison as Answers
from ortolan.runtime import open_bundle
from ortolan.runtime.verification.certificate_files import read_certificate

NUMBERS = ("logits", "outputs", "images", "sounds")
"""Topics of which one is about what a model computes, by kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of a comparison; see `ortolan.export.coverage.Row`."""

    kind: str
    error: float
    tokens_equal: bool | None


def save_tiny(values: dict[str, Any], folder: Path, *, spread: float) -> Any:
    """Save a tiny model of transformers with random weights and its processor, and return it.

    Args:
        values: its config; without `architectures`, a causal language model.
        folder: the folder of the checkpoint.
        spread: the standard deviation of its weights.
    """
    (architecture,) = values.get("architectures", [None])
    rest = {key: value for key, value in values.items() if key != "architectures"}
    model: Any = reference_model(rest, architecture=architecture, spread=spread)
    if model.config.model_type == "whisper":  # which otherwise writes no more than 20 tokens
        model.generation_config.max_length = model.config.max_target_positions
    model.save_pretrained(folder)
    if keys := processor_of(model.config):
        (folder / "preprocessor_config.json").write_text(json.dumps(keys))
    return model


def loaded(folder: Path) -> Any:
    """The model of transformers of a checkpoint."""
    (architecture,) = json.loads((folder / "config.json").read_text())["architectures"]
    kind = getattr(transformers, architecture)
    return kind.from_pretrained(folder, attn_implementation="eager").eval()


def findings(checkpoint: Path, bundle: Path, **more: Any) -> dict[str, Finding]:
    """What a witness in this process finds, by topic."""
    brief = Brief(bundle=str(bundle), checkpoint=str(checkpoint), threads=1, **more)
    return {finding.topic: finding for finding in answers(brief) if finding.topic}


def compare(checkpoint: Path, folder: Path, **more: Any) -> Comparison:
    """Compare what transformers makes of a checkpoint with its bundle.

    Args:
        checkpoint: what was exported.
        folder: its bundle.
        **more: of the `Brief`, such as its `max_context`.

    Raises:
        ValueError: they differ, or transformers did not answer.
    """
    found, bundle = findings(checkpoint, folder, **more), open_bundle(folder)
    asked = [found[name] for name in NUMBERS if name in found]
    measured = read_certificate(bundle).measured
    # a checkpoint without a processor is not asked about pictures, and a few need torchvision
    problems = [own.first for own in found.values() if own.first]
    problems += [own.unasked for own in asked if own.unasked]
    if problems or not asked or measured is None:
        raise ValueError("; ".join(map(str, problems)) or "no numbers were compared")
    replayed = measured.max_abs_delta / max(measured.max_abs_logit, 1e-30)
    written = found.get("completions")
    return Comparison(
        kind=bundle.manifest.kind,
        error=max(replayed, *(own.largest or 0.0 for own in found.values())),
        tokens_equal=None if written is None else written.agreed == written.questions,
    )


def assert_alike(got: Any, wanted: Any, tolerance: float) -> None:
    """Texts and tokens are equal, and numbers are within a part of the largest, as in a witness."""
    if isinstance(wanted, dict):
        assert list(got) == list(wanted)
    answers = Answers(tolerance)
    answers.compare(got, wanted)
    assert answers.first is None, f"{answers.first}"
