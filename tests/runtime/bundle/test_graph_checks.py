"""Inputs and outputs of graphs, which must be those that the manifest implies."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.bundle.manifests import SOURCES, document_of, read

from ortolan.runtime.bundle.graph_checks import check_graph
from ortolan.runtime.bundle.interface import inputs_of, outputs_of
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.parts import HiddenStates
from ortolan.runtime.graph.summary import GraphSummary, Value
from ortolan.runtime.verification.surroundings import Meanings

HIDDEN: dict[str, Any] = {"size": 32}

MANIFESTS: dict[str, Manifest] = {
    **{kind: read(document_of(kind)) for kind in ("decoder", "encoder", "image")},
    "translator": read(document_of("encoder-decoder")),
    "captions": read(document_of("encoder-decoder") | {"source": SOURCES["image"]}),
    "with a head": read(document_of("decoder") | {"hidden_states": HIDDEN | {"head": "5" * 64}}),
    "head": read(document_of("decoder") | {"hidden_states": HIDDEN}),
}

# --- names ------------------------------------------------------------------------------------

STEP = ("input_ids", "seqlens_k", "total_sequence_length", "logit_positions")
PAST = ("past_key_values.0.key", "past_key_values.0.value")
PRESENT = ("present.0.key", "present.0.value")
TEXT = ("input_ids", "lengths")


@pytest.mark.parametrize(
    ("name", "role", "inputs", "outputs"),
    [
        ("decoder", "decoder", (*STEP, *PAST), ("logits", *PRESENT)),
        ("decoder", "decode", (*STEP, *PAST), ("logits", *PRESENT)),
        ("decoder", "attention", ("input_ids",), ("decoder.0.self",)),
        ("encoder", "encoder", TEXT, ("output",)),
        ("encoder", "attention", TEXT, ("encoder.0.self",)),
        ("image", "encoder", ("pixels",), ("output",)),
        ("image", "attention", ("pixels",), ("encoder.0.self",)),
        ("translator", "encoder", TEXT, ("cross.0.key",)),
        ("captions", "encoder", ("pixels",), ("cross.0.key",)),
        (
            "translator",
            "decoder",
            (*STEP, "source_lengths", *PAST, "cross.0.key"),
            ("logits", *PRESENT),
        ),
        ("translator", "attention", (*TEXT, "target_ids"), ("encoder.0.self", "decoder.0.cross")),
        ("with a head", "decoder", (*STEP, *PAST), ("logits", "hidden_states", *PRESENT)),
        (
            "head",
            "decoder",
            (*STEP, "previous_states", *PAST),
            ("logits", "hidden_states", *PRESENT),
        ),
    ],
)
def test_names_of_a_graph_follow_from_its_role_and_the_manifest(
    name: str, role: str, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> None:
    manifest = MANIFESTS[name]
    assert (*inputs_of(role, manifest),) == inputs
    assert (*outputs_of(role, manifest),) == outputs
    read, written = (
        tuple(value(name, *shape, dtype=dtype) for name, (dtype, shape) in values.items())
        for values in (inputs_of(role, manifest), outputs_of(role, manifest))
    )
    check_graph(role, graph(*written, inputs=read[::-1]), manifest, file="g.onnx")


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [(["input_ids", "size"], ["cross.0.key"]), (["input_ids", "lengths"], [])],
)
def test_missing_and_unexpected_names_are_both_named(
    inputs: list[str], outputs: list[str], snapshot: SnapshotAssertion
) -> None:
    manifest = MANIFESTS["translator"]
    values = {value.name: value for value in READS}
    read = tuple(values.get(name, value(name)) for name in inputs)
    checked = graph(*map(value, outputs), inputs=read)
    assert refusal(lambda: check_graph("encoder", checked, manifest, file="g.onnx")) == snapshot


def test_only_a_model_has_a_head_and_only_a_head_reads_states() -> None:
    manifests = [MANIFESTS[name] for name in ("decoder", "with a head", "head")]
    assert [manifest.has_head for manifest in manifests] == [False, True, False]
    assert [manifest.is_head for manifest in manifests] == [False, False, True]
    plain, with_head, _ = manifests
    other = msgspec.structs.replace(with_head, hidden_states=HiddenStates(size=32, head="6" * 64))
    assert len({Meanings.of(manifest).sha256 for manifest in (plain, with_head, other)}) == 3


# --- shapes and types -------------------------------------------------------------------------


def value(name: str, *shape: int | str, dtype: str = "float32") -> Value:
    return Value(name=name, dtype=dtype, shape=shape)


def graph(*outputs: Value, inputs: tuple[Value, ...]) -> GraphSummary:
    return GraphSummary(
        inputs=inputs,
        outputs=outputs,
        operators={},
        attention=(),
        external=(),
        reads=frozenset(),
        functions=(),
    )


READS = (value("input_ids", "b", "t", dtype="int64"), value("lengths", "b", dtype="int32"))
LABELS = graph(value("output", "b", 2), inputs=READS)
CROSS = graph(value("cross.0.key", "sources", 2, "t", 8), inputs=READS)
MAPS = graph(
    value("encoder.0.self", "b", 4, "t", "t"),
    value("decoder.0.cross", "b", 4, "s", "t"),
    inputs=(*READS, value("target_ids", "b", "t", dtype="int64")),
)
STEPS = (
    value(STEP[0], "b", "t", dtype="int64"),
    value(STEP[1], "b", dtype="int32"),
    value(STEP[2], dtype="int32"),
    value(STEP[3], "b", "n", dtype="int64"),
)
CACHE = (*STEPS, *(value(name, "b", 2, "c", 8) for name in PAST))
CACHED = graph(
    value("logits", "b", "n", 24), *(value(name, "b", 2, "c", 8) for name in PRESENT), inputs=CACHE
)
HIDDEN_STATES = value("hidden_states", "b", "n", 32)
NARROW = value("hidden_states", "b", "n", 16)
WITH_HEAD = replace(CACHED, outputs=(*CACHED.outputs, HIDDEN_STATES))
HEAD = replace(WITH_HEAD, inputs=(*CACHE, value("previous_states", "b", "n", 32)))


def with_output(*shape: int | str, name: str = "output", dtype: str = "float32") -> GraphSummary:
    return replace(LABELS, outputs=(value(name, *shape, dtype=dtype),))


@pytest.mark.parametrize(
    ("name", "role", "summary"),
    [
        ("encoder", "encoder", LABELS),
        ("encoder", "encoder", with_output("b", "labels")),
        ("translator", "encoder", CROSS),
        ("translator", "attention", MAPS),
        (
            "decoder",
            "attention",
            replace(with_output(1, 4, "s", "s", name="decoder.0.self"), inputs=READS[:1]),
        ),
        ("decoder", "decoder", CACHED),
        ("with a head", "decoder", WITH_HEAD),
        ("head", "decoder", HEAD),
    ],
)
def test_a_graph_that_fits_the_manifest_is_accepted(
    name: str, role: str, summary: GraphSummary
) -> None:
    check_graph(role, summary, MANIFESTS[name], file="x.onnx")


REFUSED: dict[str, tuple[str, str, GraphSummary]] = {
    "three labels": ("encoder", "encoder", with_output("b", 3)),
    "half a label": ("encoder", "encoder", with_output("b", 2, dtype="float16")),
    "labels of tokens": ("encoder", "encoder", with_output("b", "t", 2)),
    "logits of labels": ("encoder", "encoder", with_output("b", 2, name="logits")),
    "no lengths": ("encoder", "encoder", replace(LABELS, inputs=READS[:1])),
    "no maps": ("encoder", "attention", replace(MAPS, inputs=READS, outputs=())),
    "half of the maps": ("translator", "attention", replace(MAPS, outputs=MAPS.outputs[:1])),
    "other heads": (
        "translator",
        "encoder",
        with_output("sources", 4, "t", 8, name="cross.0.key"),
    ),
    "wide keys": (
        "decoder",
        "decoder",
        replace(CACHED, inputs=(*STEPS, value(PAST[0], "b", 2, "c", 16), CACHE[-1])),
    ),
    "no values": ("decoder", "decoder", replace(CACHED, inputs=CACHE[:-1])),
    "no new values": ("decoder", "decoder", replace(CACHED, outputs=CACHED.outputs[:2])),
    "no logits": ("decoder", "decoder", replace(CACHED, outputs=CACHED.outputs[1:])),
    "no hidden states": ("with a head", "decoder", CACHED),
    "narrow hidden states": (
        "with a head",
        "decoder",
        replace(CACHED, outputs=(*CACHED.outputs, NARROW)),
    ),
    "no previous states": ("head", "decoder", WITH_HEAD),
    "narrow previous states": (
        "head",
        "decoder",
        replace(HEAD, inputs=(*CACHE, value("previous_states", "b", "n", 16))),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_graph_that_does_not_fit_the_manifest_is_rejected(
    case: str, snapshot: SnapshotAssertion
) -> None:
    name, role, summary = REFUSED[case]
    assert refusal(lambda: check_graph(role, summary, MANIFESTS[name], file="x.onnx")) == snapshot
