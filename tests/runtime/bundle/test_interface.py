from typing import Any, Literal

import msgspec
import pytest
from tests.runtime import tiny_bundle
from tests.runtime.tiny_encoder import IMAGE

from ortolan.runtime.bundle.interface import check_names, inputs_of, outputs_of
from ortolan.runtime.bundle.manifest import Graph, Manifest, Output, State
from ortolan.runtime.bundle.sources import ImageSource, TextSource
from ortolan.runtime.errors import GraphError

Kind = Literal["decoder", "encoder", "encoder-decoder"]

STEP = ("input_ids", "seqlens_k", "total_sequence_length", "logit_positions")
PAST = ("past_key_values.0.key", "past_key_values.0.value")
PRESENT = ("present.0.key", "present.0.value")
TEXT = TextSource(max_tokens=9)
CROSS = State(
    name="cross",
    input="cross.0.key",
    output="cross.0.key",
    shape=("batch", 2, "source", 8),
    dtype="float32",
    update="source",
)
OUTPUT = Output(kind="states", size=8)


def manifest_of(kind: Kind, source: TextSource | ImageSource | None = None) -> Manifest:
    plain = tiny_bundle.manifest_of(tiny_bundle.files_of(tiny_bundle.model()))
    states: dict[Kind, tuple[State, ...]] = {
        "decoder": plain.states,
        "encoder": (),
        "encoder-decoder": (*plain.states, CROSS),
    }
    return msgspec.structs.replace(
        plain,
        kind=kind,
        source=source,
        states=states[kind],
        output=OUTPUT if kind == "encoder" else None,
        attention_maps=("decoder.0.self",),
        graphs={role: Graph(file=f"{role}.onnx") for role in ("encoder", "decoder", "attention")},
    )


@pytest.mark.parametrize(
    ("role", "kind", "source", "inputs", "outputs"),
    [
        ("decoder", "decoder", None, (*STEP, *PAST), ("logits", *PRESENT)),
        ("decode", "decoder", None, (*STEP, *PAST), ("logits", *PRESENT)),
        ("attention", "decoder", None, ("input_ids",), ("decoder.0.self",)),
        ("encoder", "encoder", TEXT, ("input_ids", "lengths"), ("output",)),
        ("encoder", "encoder", IMAGE, ("pixels",), ("output",)),
        ("attention", "encoder", TEXT, ("input_ids", "lengths"), ("decoder.0.self",)),
        ("attention", "encoder", IMAGE, ("pixels",), ("decoder.0.self",)),
        ("encoder", "encoder-decoder", TEXT, ("input_ids", "lengths"), ("cross.0.key",)),
        ("encoder", "encoder-decoder", IMAGE, ("pixels",), ("cross.0.key",)),
        (
            "decoder",
            "encoder-decoder",
            TEXT,
            (*STEP, "source_lengths", *PAST, "cross.0.key"),
            ("logits", *PRESENT),
        ),
        (
            "attention",
            "encoder-decoder",
            TEXT,
            ("input_ids", "lengths", "target_ids"),
            ("decoder.0.self",),
        ),
    ],
)
def test_names_of_a_graph_follow_from_its_role_and_the_kind(
    role: str, kind: Kind, source: Any, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> None:
    manifest = manifest_of(kind, source)
    assert inputs_of(role, manifest) == inputs
    assert outputs_of(role, manifest) == outputs


def test_missing_and_unexpected_names_are_both_named() -> None:
    manifest = manifest_of("encoder-decoder", TEXT)
    check_names("encoder", manifest, inputs=["lengths", "input_ids"], outputs=["cross.0.key"])
    message = r"encoder\.onnx.*inputs.*missing: lengths; unexpected: size"
    with pytest.raises(GraphError, match=message):
        check_names("encoder", manifest, inputs=["input_ids", "size"], outputs=["cross.0.key"])
    with pytest.raises(GraphError, match=r"outputs.*missing: cross\.0\.key; unexpected: none"):
        check_names("encoder", manifest, inputs=["input_ids", "lengths"], outputs=[])
