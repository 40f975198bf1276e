"""Bundles of models whose rotary frequencies depend on the length of the text."""

from pathlib import Path

import numpy as np
import pytest
from tests.modeling.families.test_rope_lengths import LONGEST, ORIGINAL, values_of
from tests.modeling.tiny_encoders import ENCODERS
from tests.modeling.tiny_models import random_text, reference_logits, reference_model
from transformers import PreTrainedModel

import ortolan
from ortolan.export.options import ExportOptions, Via
from ortolan.export.preview.preview import preview
from ortolan.export.proof.probes import text_of
from ortolan.export.source import open_exportable

PROMPT = ORIGINAL - 4


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return reference_model(values_of("longrope"))


@pytest.fixture(scope="module")
def checkpoint(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("longrope")
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("context", "via"),
    [
        pytest.param(None, "family", marks=pytest.mark.slow),
        pytest.param(None, "transformers", marks=pytest.mark.slow),
        (LONGEST, "family"),
        pytest.param(LONGEST, "transformers", marks=pytest.mark.slow),
    ],
)
def test_a_bundle_computes_the_texts_it_is_for_as_transformers_does(
    context: int | None, via: Via, model: PreTrainedModel, checkpoint: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    bundle = ortolan.export(
        checkpoint,
        tmp_path / "bundle",
        max_context=context,
        options=ExportOptions(via=via, proof="quick"),
        warn=said.append,
    )
    assert bundle.manifest.context_length == (context or ORIGINAL)
    (note,) = said
    assert (f"{ORIGINAL} of {LONGEST} tokens" in note) == (context is None)
    ids = random_text(LONGEST)
    first, last = (ORIGINAL + 1, LONGEST) if context else (PROMPT + 1, ORIGINAL)
    with ortolan.load(tmp_path / "bundle", ortolan.Decoder).session() as session:
        session.append(ids[0, :PROMPT].tolist())
        for length in range(PROMPT + 1, min(last, ORIGINAL + 4) + 1):
            got = session.append([int(ids[0, length - 1])])
            wanted = reference_logits(model, ids[:, :length])[0, -1].numpy()
            close = np.abs(got - wanted).max() < 1e-4 * np.abs(wanted).max()
            # A step agrees with the whole text.
            assert close == (first <= length <= last)


@pytest.mark.parametrize("via", ["family", "transformers"])
def test_a_certificate_says_which_frequencies_it_compares(via: Via, checkpoint: Path) -> None:
    opened = open_exportable(checkpoint, ExportOptions(via=via), max_context=LONGEST)
    assert opened.switches_after == ORIGINAL
    assert "changes its rotary frequencies" in opened.notes[0]
    assert f"of a text of {LONGEST} tokens" in text_of(opened, None)


def test_what_an_export_would_limit_is_said_before(checkpoint: Path) -> None:
    about = preview(checkpoint)
    assert about.context_length == ORIGINAL
    (note,) = about.notes
    assert f"{ORIGINAL} of {LONGEST} tokens" in note
    assert f"--max-context {LONGEST}" in note


def test_texts_too_long_for_full_attention_are_said_before(tmp_path: Path) -> None:
    ENCODERS["big-bird-long"].write(tmp_path)
    about = preview(tmp_path)
    assert about.context_length == 44
    assert "44 of 64 tokens" in about.notes[0]


def test_nothing_is_said_where_frequencies_are_the_same_for_all_texts(tmp_path: Path) -> None:
    reference_model(values_of("longrope alike")).save_pretrained(tmp_path)
    for via in ("family", "transformers"):
        opened = open_exportable(tmp_path, ExportOptions(via=via))
        assert opened.context_length == LONGEST
        assert opened.notes == ()
        assert "frequencies" not in text_of(opened, None)


def test_a_reference_of_transformers_chooses_frequencies_itself(checkpoint: Path) -> None:
    opened = open_exportable(checkpoint, ExportOptions(via="transformers"))
    assert opened.context_length == ORIGINAL
    kinds = {getattr(module, "rope_type", None) for module in opened.module.modules()}
    assert "longrope" in kinds
