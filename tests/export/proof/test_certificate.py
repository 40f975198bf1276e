"""The reference of every kind of model: that of the whole module, computed a weight at a time."""

import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from syrupy.assertion import SnapshotAssertion
from tests.export import tiny_models
from tests.export.models_of_kinds import (
    decoder_config,
    encoder_config,
    image_config,
    module_of,
    opened,
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
from ortolan.export.proof.reference import TOP_K
from ortolan.modeling import load
from ortolan.modeling.config import (
    ClassifierHead,
    EmbeddingHead,
    Head,
    HeadLayer,
    LanguageModelHead,
)
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

DECODERS = ("llama", "gpt2", "mistral", "qwen2", "post_norm")

CASES = {**tiny_encoders.ENCODERS, **tiny_encoders.IMAGES, **tiny_encoders.SEQ2SEQ}

FAMILIES = (
    *("bert-masked-values", "roberta-masked", "distilbert-masked-untied", "bert"),
    *("roberta-classifier", "bert-classifier", "vit", "vit-oblong"),
    *("marian-two-vocabularies", "bart-values", "marian", "t5", "t5-gated-silu"),
)

HEADS: dict[str, Head | None] = {
    "states": None,
    "logits": LanguageModelHead(tied=True, bias=True),
    "labels": ClassifierHead(
        labels=("a", "b", "c"), pooling="mean", layer=HeadLayer(activation="tanh")
    ),
    "label": ClassifierHead(labels=("a",), pooling="first"),
    "embedding": EmbeddingHead(pooling=("mean",)),
}

CONFIGS: dict[str, Callable[[], Any]] = {
    "decoder": decoder_config,
    "encoder": encoder_config,
    "images": image_config,
    "seq2seq": seq2seq_config,
}


def certified(model: Exportable) -> Certificate:
    return certify(
        model, make_probes(model), thresholds=thresholds("fp32", output=model.output_kind)
    )


def logits_of(certificate: Certificate) -> Logits:
    assert isinstance(certificate.reference, Logits)
    return certificate.reference


def outputs(model: Exportable, module: TransformerModel) -> list[NDArray[np.float32]]:
    """Output of the whole module for each probe, in the rows that a certificate stores."""
    inputs = inputs_of(model, make_probes(model))
    rows = []
    for place in range(max(len(inputs.sources), len(inputs.ids))):
        sides: list[Tensor | None] = [
            side[place][None] for side in (inputs.sources, inputs.ids) if side
        ]
        source = sides[0]
        if source is not None and source.ndim == 3 and not source.is_floating_point():
            sides = [source[:, 0], None, source[:, 1]]  # ids, and the types of their tokens
        with torch.inference_mode():
            output = module(*sides).numpy()
        output = output[0] if output.ndim == 3 else output
        rows.append(output[kept_positions(len(output), model.output_kind)])
    return rows


def assert_is_what_the_module_computes(
    certificate: Certificate, model: Exportable, module: TransformerModel
) -> None:
    probes = outputs(model, module)
    whole = np.concatenate(probes)
    atol = 1e-5 * max(2.0, float(np.abs(whole).max()))
    if isinstance(certificate.reference, Vectors):
        np.testing.assert_allclose(certificate.reference.values, whole, rtol=1e-5, atol=atol)
        return
    stored = logits_of(certificate)
    if whole.shape[1] == 1:
        whole = np.concatenate((whole, np.zeros_like(whole)), 1)
    assert stored.top_ids.shape == (len(whole), min(TOP_K, whole.shape[1]))
    # The values at the ids, in the order of the ids: ties may be sorted either way.
    chosen = np.take_along_axis(whole, stored.top_ids.astype(np.int64), -1)
    np.testing.assert_allclose(stored.top_logits, chosen, rtol=1e-5, atol=atol)
    highest = np.sort(whole, -1)[:, ::-1][:, : stored.top_ids.shape[1]]
    np.testing.assert_allclose(stored.top_logits, highest, rtol=1e-5, atol=atol)
    sums = np.log(np.exp(whole.astype(np.float64)).sum(-1))
    np.testing.assert_allclose(stored.log_sum_exp, sums, rtol=1e-5)
    if not model.sides.has_decoder:
        assert stored.next_logits is None
        return
    assert stored.next_logits is not None
    start = 0
    for ids, logits in zip(inputs_of(model, make_probes(model)).ids, probes, strict=True):
        next_logits = np.take_along_axis(logits[:-1], ids[1:, None].numpy(), -1)[:, 0]
        got = stored.next_logits[start : start + len(ids) - 1]
        np.testing.assert_allclose(got, next_logits, atol=atol)
        start += len(ids)
    assert start == len(certificate.token_ids)


@pytest.mark.parametrize("name", DECODERS)
def test_reference_of_a_decoder(name: str) -> None:
    module = tiny_models.decoder(getattr(tiny_models, name)())
    model = opened(module)
    assert_is_what_the_module_computes(certified(model), model, module)


@pytest.mark.parametrize("name", FAMILIES)
def test_reference_of_every_other_family(name: str, tmp_path: Path) -> None:
    CASES[name].reference().save_pretrained(tmp_path)
    model = opened(tmp_path)
    assert_is_what_the_module_computes(certified(model), model, load(tmp_path, TransformerModel))


@pytest.mark.parametrize("positions", kinds.POSITIONS)
def test_reference_with_every_kind_of_position(positions: str) -> None:
    module = kinds.seq2seq(kinds.seq2seq_config(kinds.POSITIONS[positions]))
    model = opened(module)
    assert_is_what_the_module_computes(certified(model), model, module)


@pytest.mark.parametrize(
    ("head", "source"),
    [
        *((head, "text") for head in HEADS),
        *((head, "image") for head in ("states", "labels", "embedding")),
    ],
)
def test_reference_of_every_head(head: str, source: str) -> None:
    config = encoder_config if source == "text" else image_config
    module = module_of(config(head=HEADS[head]))
    model = opened(module)
    certificate = certified(model)
    assert_is_what_the_module_computes(certificate, model, module)
    assert certificate.kind == "encoder"
    assert certificate.output == ("labels" if head == "label" else head)
    assert (certificate.images is None) == (source == "text")


@pytest.mark.parametrize(("config", "context"), [(tiny_models.gpt2, 100), (tiny_models.qwen2, 400)])
def test_reference_with_another_context(config: Callable[[], Any], context: int) -> None:
    # Fewer rows of a learned table, and positions that stretch.
    model = opened(tiny_models.decoder(config()), context)
    certificate = certified(model)
    assert max(probe.length for probe in certificate.probes) == min(context, 512)
    reference = tiny_models.reference(tiny_models.decoder(config()), context)
    assert_is_what_the_module_computes(certificate, model, reference)


def test_reference_of_bfloat16_weights_is_computed_in_float32() -> None:
    module = tiny_models.decoder(tiny_models.llama(), torch.bfloat16)
    model = opened(module)
    # `module.float()` would not do: its rotary tables have been rounded as well.
    assert_is_what_the_module_computes(certified(model), model, tiny_models.reference(module, None))


def test_checkpoint_and_module_have_the_same_reference(checkpoint: Path) -> None:
    module = tiny_models.decoder(tiny_models.llama())
    probes = make_probes(opened(module))
    bounds = thresholds("fp16")
    read, live = (
        certify(opened(source), probes, thresholds=bounds) for source in (checkpoint, module)
    )
    np.testing.assert_array_equal(logits_of(read).top_logits, logits_of(live).top_logits)
    assert read.thresholds == bounds != thresholds("fp32")


def test_states_of_long_texts_are_thinned_out() -> None:
    assert kept_positions(ROWS, "states") == list(range(ROWS))
    spread = kept_positions(512, "states")
    assert (len(spread), spread[0], spread[-1]) == (ROWS, 0, 511)
    assert sorted(set(spread)) == spread
    assert kept_positions(512, "logits") == list(range(512))
    assert kept_positions(512, "labels") == kept_positions(512, "embedding") == [0]


# --- a weight at a time ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows", [1, 97, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (10, 96))]
)
@pytest.mark.parametrize("name", ["llama", "gpt2", "encoder"])
def test_chunks_of_the_vocabulary_give_the_same_reference(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "encoder":
        module = module_of(encoder_config(head=HEADS["logits"]))
    else:
        module = tiny_models.decoder(getattr(tiny_models, name)())
    model = opened(module)
    whole = logits_of(certified(model))
    monkeypatch.setattr(streamed, "READ_BYTES", rows * 4 * 32)
    chunked = certified(model)
    assert_is_what_the_module_computes(chunked, model, module)
    assert (logits_of(chunked).top_ids == whole.top_ids).mean() > 0.999  # but for near ties
    np.testing.assert_allclose(logits_of(chunked).log_sum_exp, whole.log_sum_exp, rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 50, 4096])
def test_ties_are_broken_by_the_lower_id_across_chunks(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tiny_models.decoder(tiny_models.llama())
    assert module.head is not None
    module.head.weight.data[10:90] = 0  # more than a certificate stores
    module.head.weight.data[95] = module.head.weight.data[3]
    monkeypatch.setattr(streamed, "READ_BYTES", rows * 4 * 32)
    for row in logits_of(certified(opened(module))).top_ids.tolist():
        equal = [token for token in row if 10 <= token < 90]
        assert len(equal) > TOP_K / 3
        assert equal == list(range(10, 10 + len(equal)))
        assert (3 in row) or (95 not in row)
        if 3 in row and 95 in row:
            assert row.index(95) == row.index(3) + 1


def test_a_small_vocabulary_is_stored_whole() -> None:
    module = tiny_models.decoder(replace(tiny_models.llama(), vocab_size=9))
    top_ids = logits_of(certified(opened(module))).top_ids
    assert np.sort(top_ids, axis=-1).tolist() == [list(range(9))] * len(top_ids)


@pytest.mark.parametrize("config", ["encoder", "images", "seq2seq"])
def test_one_matrix_is_in_memory_at_a_time(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
    certified(source_of(CONFIGS[config]()))
    assert most == 1
    assert any("blocks.1." in name for name, _ in alive)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("config", CONFIGS)
def test_weights_that_are_not_finite_are_an_error(config: str, value: float) -> None:
    module = module_of(CONFIGS[config]())
    last = [name for name, _ in module.named_parameters() if name.endswith("down.weight")][-1]
    module.get_parameter(last).data[3, 3] = value
    with pytest.raises(ExportError, match=r"(states|logits) that are not finite"):
        certified(opened(module))


# --- thresholds and messages ------------------------------------------------------------------


def test_limits_fit_the_output() -> None:
    logits, states = (thresholds("int8", output=output) for output in ("labels", "states"))
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


FAILURES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "states": ("fp32", "states", {}),
    "labels": (
        "int4",
        "labels",
        {"output": "labels", "mean_kl": 0.7, "top1_agreement": 0.5, "mean_cosine": None},
    ),
}
"""A precision, an output, and what was measured."""


@pytest.mark.parametrize("name", FAILURES)
def test_message_of_a_bundle_that_failed_fits_what_was_compared(
    name: str, snapshot: SnapshotAssertion
) -> None:
    precision, output, measured = FAILURES[name]
    model = source_of(encoder_config(head=HEADS["labels"] if output == "labels" else None))
    bounds = thresholds(precision, output=output)
    certificate = certify(model, make_probes(model), thresholds=bounds)
    advice = ("--head-bits 8", "--precision int8")
    assert describe_failure(report(**measured), certificate, advice) == snapshot
