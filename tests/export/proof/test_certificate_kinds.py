"""The reference of encoders and encoder-decoders: that of the whole module, a layer at a time."""

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.export.models_of_kinds import (
    encoder_config,
    image_config,
    module_of,
    seq2seq_config,
    source_of,
)
from tests.modeling import kinds, tiny_encoders
from torch import Tensor

from ortolan.export import streamed
from ortolan.export.errors import ExportError, OptionError
from ortolan.export.exportable import Exportable
from ortolan.export.proof.certificate import certify, describe_failure, passed, thresholds
from ortolan.export.proof.probes import inputs_of, make_probes
from ortolan.export.source import open_exportable
from ortolan.modeling import load
from ortolan.modeling.config import ClassifierHead, EmbeddingHead, Head, LanguageModelHead
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.weights import read_weight
from ortolan.runtime.verification.certificate import (
    ROWS,
    Certificate,
    Logits,
    Vectors,
    kept_positions,
)
from ortolan.runtime.verification.report import Divergence, Report

FAMILIES = {
    **{name: tiny_encoders.ENCODERS[name] for name in ("bert-masked-values", "roberta-masked")},
    **{name: tiny_encoders.ENCODERS[name] for name in ("distilbert-masked-untied", "bert")},
    **{name: tiny_encoders.ENCODERS[name] for name in ("roberta-classifier", "bert-classifier")},
    **{name: tiny_encoders.IMAGES[name] for name in ("vit", "vit-oblong")},
    **{name: tiny_encoders.SEQ2SEQ[name] for name in ("marian-two-vocabularies", "bart-values")},
    **{name: tiny_encoders.SEQ2SEQ[name] for name in ("marian", "t5", "t5-gated-silu")},
}

HEADS: dict[str, Head | None] = {
    "states": None,
    "logits": LanguageModelHead(tied=True, bias=True),
    "labels": ClassifierHead(labels=("a", "b", "c"), pooling="mean", activation="tanh"),
    "label": ClassifierHead(labels=("a",), pooling="first"),
    "embedding": EmbeddingHead(pooling=("mean",)),
}


def certified(model: Exportable) -> Certificate:
    return certify(model, make_probes(model), thresholds=thresholds("fp32", output=model.output))


def outputs(model: Exportable, module: TransformerModel) -> list[NDArray[np.float32]]:
    """What the whole module computes for each probe, a row for each position that is kept."""
    inputs = inputs_of(model, make_probes(model))
    found = []
    for place in range(max(len(inputs.sources), len(inputs.ids))):
        given = [each[place][None] for each in (inputs.sources, inputs.ids) if each]
        with torch.inference_mode():
            found.append(module(*given).numpy())
    rows = [each[0] if each.ndim == 3 else each for each in found]
    return [each[kept_positions(len(each), model.output)] for each in rows]


def assert_is_what_the_module_computes(
    certificate: Certificate, model: Exportable, module: TransformerModel
) -> None:
    whole = np.concatenate(outputs(model, module))
    atol = 1e-5 * max(1.0, float(np.abs(whole).max()))
    match certificate.reference:
        case Vectors(values=values):
            np.testing.assert_allclose(values, whole, rtol=1e-5, atol=atol)
        case Logits() as kept:
            if whole.shape[1] == 1:
                whole = np.concatenate((whole, np.zeros_like(whole)), 1)
            chosen = np.take_along_axis(whole, kept.top_ids.astype(np.int64), -1)
            np.testing.assert_allclose(kept.top_logits, chosen, rtol=1e-5, atol=atol)
            highest = np.sort(whole, -1)[:, ::-1][:, : kept.top_ids.shape[1]]
            np.testing.assert_allclose(kept.top_logits, highest, rtol=1e-5, atol=atol)
            sums = np.log(np.exp(whole.astype(np.float64)).sum(-1))
            np.testing.assert_allclose(kept.log_sum_exp, sums, rtol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_reference_of_every_family_is_what_its_module_computes(name: str, tmp_path: Path) -> None:
    FAMILIES[name].reference().save_pretrained(tmp_path)
    model = open_exportable(tmp_path, tokenizer=None, max_context=None)
    assert_is_what_the_module_computes(certified(model), model, load(tmp_path, TransformerModel))


@pytest.mark.parametrize("positions", kinds.POSITIONS)
def test_reference_of_every_kind_of_position_is_what_the_module_computes(positions: str) -> None:
    module = kinds.seq2seq(kinds.seq2seq_config(kinds.POSITIONS[positions]))
    model = open_exportable(module, tokenizer=None, max_context=None)
    assert_is_what_the_module_computes(certified(model), model, module)


@pytest.mark.parametrize(
    ("head", "source"),
    [
        *((head, "text") for head in HEADS),
        *((head, "image") for head in ("states", "labels", "embedding")),
    ],
)
def test_reference_of_every_head_is_what_the_module_computes(head: str, source: str) -> None:
    config = encoder_config if source == "text" else image_config
    module = module_of(config(head=HEADS[head]))
    model = open_exportable(module, tokenizer=None, max_context=None)
    certificate = certified(model)
    assert_is_what_the_module_computes(certificate, model, module)
    assert certificate.kind == "encoder"
    assert certificate.output == ("labels" if head == "label" else head)
    assert (certificate.images is None) == (source == "text")
    kept = certificate.reference
    assert not isinstance(kept, Logits) or kept.next_logits is None


def test_of_long_texts_a_bounded_number_of_states_is_kept() -> None:
    assert kept_positions(ROWS, "states") == list(range(ROWS))
    spread = kept_positions(512, "states")
    assert (len(spread), spread[0], spread[-1]) == (ROWS, 0, 511)
    assert sorted(set(spread)) == spread
    assert kept_positions(512, "logits") == list(range(512))
    assert kept_positions(512, "labels") == kept_positions(512, "embedding") == [0]


@pytest.mark.parametrize("rows", [1, 10, 97])
def test_chunks_of_the_vocabulary_give_the_same_reference(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed, "READ_BYTES", rows * 4 * 32)
    module = module_of(encoder_config(head=HEADS["logits"]))
    model = open_exportable(module, tokenizer=None, max_context=None)
    assert_is_what_the_module_computes(certified(model), model, module)


@pytest.mark.parametrize("config", [encoder_config, image_config, seq2seq_config])
def test_one_matrix_is_in_memory_at_a_time(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[tuple[str, weakref.ref[Tensor]]] = []
    most = 0

    def watched(weights: Any, name: str) -> Tensor:
        nonlocal most
        weight = read_weight(weights, name)
        alive.append((name, weakref.ref(weight)))
        held = [tensor() for _, tensor in alive]
        most = max(most, sum(tensor is not None and tensor.ndim > 1 for tensor in held))
        return weight

    monkeypatch.setattr(streamed, "read_weight", watched)
    certified(source_of(config()))
    assert most == 1
    blocks = {name for name, _ in alive if "blocks." in name}
    assert any("blocks.1." in name for name in blocks)


@pytest.mark.parametrize("config", [encoder_config, image_config, seq2seq_config])
def test_weights_that_are_not_finite_are_an_error(config: Any) -> None:
    module = module_of(config())
    last = [name for name, _ in module.named_parameters() if name.endswith("down.weight")][-1]
    module.get_parameter(last).data[3, 3] = float("nan")
    with pytest.raises(ExportError, match=r"(states|logits) that are not finite"):
        certified(open_exportable(module, tokenizer=None, max_context=None))


# --- thresholds and messages ------------------------------------------------------------------


def test_what_is_compared_decides_which_mean_is_bounded() -> None:
    logits, states = (thresholds("int8", output=given) for given in ("labels", "states"))
    assert (logits.mean_cosine, states.mean_kl) == (None, None)
    assert logits.mean_kl == thresholds("int8").mean_kl
    assert states.mean_cosine is not None
    assert thresholds("fp32", output="embedding").near_tie is None
    assert thresholds("int4", output="labels", max_kl=0.25).mean_kl == 0.25
    with pytest.raises(OptionError, match=r"max_kl needs .* logits"):
        thresholds("int4", output="states", max_kl=0.25)


def report(**changes: Any) -> Report:
    values: dict[str, Any] = {
        "verdict": "FAIL",
        "max_abs_delta": 0.5,
        "max_abs_logit": 4.0,
        "mean_kl": None,
        "max_kl": None,
        "top1_agreement": None,
        "near_ties": 0,
        "perplexity": None,
        "reference_perplexity": None,
        "non_finite": 0,
        "first_divergence": Divergence(probe="3-16-tokens", position=7, phase="batch"),
        "phases": {},
        "device": "cpu",
        "onnxruntime": "1",
        "seconds": 0.0,
        "text": "random ids",
        "thresholds": thresholds("int4", output="states"),
        "kind": "encoder",
        "output": "states",
        "mean_cosine": 0.02,
        "max_cosine": 0.1,
    }
    return Report(**(values | changes))


def test_bound_comes_down_to_what_was_measured_and_some_leeway() -> None:
    model = source_of(encoder_config())
    probes = make_probes(model)
    for precision, bound in (("fp32", 1e-8), ("int4", 0.02), ("int8", 0.02)):
        certificate = certify(model, probes, thresholds=thresholds(precision, output="states"))
        limits = passed(certificate, report()).thresholds
        assert limits.mean_cosine == pytest.approx(bound)
        assert (limits.max_abs_delta is not None) == (precision == "fp32")


@pytest.mark.parametrize(
    ("precision", "given", "measured", "message"),
    [
        (
            "fp32",
            "states",
            {},
            "The bundle disagrees with PyTorch: expected states within 0.0004, a mean cosine "
            "distance of at most 1e-08, got 0.5, 0.02 and 0 positions not finite. First at "
            "3-16-tokens, position 7, batch. The bundle was deleted.",
        ),
        (
            "int4",
            "labels",
            {"output": "labels", "mean_kl": 0.7, "top1_agreement": 0.5, "mean_cosine": None},
            "Poor quality: the mean KL from the trained model must be at most 0.15 (got poor: mean "
            "KL 0.7 (99 % below 0), top-1 50.0%, on random ids). The bundle was deleted. Try "
            "--head-bits 8 or --precision int8. Or keep it with --allow-poor.",
        ),
    ],
)
def test_message_of_a_bundle_that_failed_fits_what_was_compared(
    precision: str, given: Any, measured: dict[str, Any], message: str
) -> None:
    head = HEADS["labels"] if given == "labels" else None
    model = source_of(encoder_config(head=head))
    bounds = thresholds(precision, output=given)
    certificate = certify(model, make_probes(model), thresholds=bounds)
    advice = ("--head-bits 8", "--precision int8")
    assert describe_failure(report(**measured), certificate, advice).startswith(message)
