"""A graph with repeated blocks, against the trace of the whole model."""

import re
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, TypeVar

import onnx_ir as ir
import pytest
import torch
from tests.export.tiny_models import llama
from tests.tiny import FAMILY_CONFIGS

from ortolan.export.passes import tidy
from ortolan.export.source.family import TRACERS, trace_graph
from ortolan.export.trace import program
from ortolan.export.trace.decoder import trace_decoder
from ortolan.export.trace.repeat import UnlikeBlocksError, repeat
from ortolan.export.trace.shorten import ENTER, LEAVE, MARKS, Blocks
from ortolan.export.trace.sides import sides_of
from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.config import EncoderDecoderConfig, ModelConfig, StackConfig
from ortolan.runtime.bundle.kinds import DECODE, PREFILL
from ortolan.runtime.bundle.manifest import Graph

C = TypeVar("C", bound=ModelConfig)

WHOLE = Blocks(of_layers={}, stacks={})


def deepened(config: C) -> C:
    """A model of more layers, with every kind of block more than once, not in turn."""
    match config:
        case EncoderDecoderConfig(encoder=encoder, decoder=decoder):
            return replace(config, encoder=deepened(encoder), decoder=deepened(decoder))
        case StackConfig(blocks=blocks):
            kinds = tuple(dict.fromkeys(blocks))
            return replace(config, blocks=(*kinds, *kinds[::-1], kinds[0]))
        case _:
            raise TypeError(type(config).__name__)


def described(model: ir.Model) -> tuple[object, ...]:
    """Everything in a graph but the order of nodes and the names inside.

    A value is identified by a hash of its computation.
    """
    graph = model.graph
    nodes: list[tuple[object, ...]] = []
    hashes: dict[ir.Value | None, object] = {None: None}
    hashes |= {value: value.name for value in (*graph.inputs, *graph.initializers.values())}
    for node in graph:
        attributes = sorted(map(shown, node.attributes.values()))
        read = [hashes[value] for value in node.inputs]
        computation = (node.domain, node.op_type, node.overload, node.version, attributes, read)
        nodes.append((*computation, [(axes(out), str(out.type)) for out in node.outputs]))
        for place, out in enumerate(node.outputs):
            hashes[out] = sha256(repr((computation, place)).encode()).hexdigest()
    return (
        sorted(nodes, key=repr),
        [(value.name, str(value.shape), str(value.type)) for value in graph.inputs],
        [(v.name, str(v.shape), str(v.type), hashes[v]) for v in graph.outputs],
        {name: (str(v.shape), str(v.type)) for name, v in graph.initializers.items()},
        dict(model.opset_imports),
    )


def axes(value: ir.Value) -> str:
    """The shape of a value; a trace proves only for the first layer that a step fits the cache."""
    return re.sub(r"Min\(capacity, (\w+)\)", r"\1", str(value.shape))


def shown(attribute: ir.Attr) -> str:
    """An attribute without the name of its tensor."""
    if attribute.type != ir.AttributeType.TENSOR:
        return str(attribute)
    tensor = attribute.as_tensor()
    return f"{attribute.name} {tensor.dtype} {tensor.numpy().tolist()}"


def traced(config: ModelConfig, role: str) -> ir.Model:
    graph = Graph(file=f"{role}.onnx", sequence=1 if role == DECODE else None)
    return tidy(trace_graph(config, role, graph, dtype=torch.float32))


FAMILIES = (
    *("llama", "gemma2", "gemma3_text", "bloom", "ernie4_5_moe", "deepseek_v3"),
    *("albert", "vit", "marian", "t5"),
)
"""Alternating windows, norms around sublayers, distances in scores, mixtures after dense layers,
latents, one shared layer, images, and two stacks."""

PAST, PRESENT = ([f"{of}.{i}.key" for i in range(4)] for of in ("past_key_values", "present"))

QUICK = "llama-decoder"

ROLES = {
    f"{name}-{role}": (name, role)
    for name in FAMILIES
    for role in sorted(TRACERS[sides_of(config_from_hf(FAMILY_CONFIGS[name], ModelConfig)).kind])
    if role not in (PREFILL, DECODE)  # as `decoder`
}


@pytest.mark.parametrize(
    ("name", "role"),
    [
        pytest.param(*pair, id=case, marks=[] if case == QUICK else pytest.mark.slow)
        for case, pair in ROLES.items()
    ],
)
def test_repeated_blocks_make_the_graph_of_the_whole_trace(
    name: str, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = deepened(config_from_hf(FAMILY_CONFIGS[name], ModelConfig))
    monkeypatch.setattr(program, "repeat", strict)
    repeated = described(traced(config, role))
    monkeypatch.setattr(program, "shorten", lambda config: (config, WHOLE))
    assert repeated == described(traced(config, role))


def strict(*args: Any, **options: Any) -> None:
    """Call `repeat`, without the fallback to a trace of the whole model."""
    try:
        repeat(*args, **options)
    except UnlikeBlocksError as error:
        raise AssertionError(str(error)) from error


def stepped(read: str) -> ir.Model:
    """Two marked blocks, and a last node that reads one more value."""
    values = {name: ir.Value(name=name) for name in ("x", *PAST[:2])}
    nodes: list[ir.Node] = []

    def add(operator: str, inputs: Sequence[str], name: str, domain: str = "") -> str:
        attributes = [ir.AttrString("stack", "")] if domain else []
        values_read = [values[value] for value in inputs]
        nodes.append(ir.Node(domain, operator, values_read, attributes, name=name))
        values[name] = nodes[-1].outputs[0]
        values[name].name = name
        return name

    stream = "x"
    for number in range(2):
        entered = add(ENTER, [stream], f"enter{number}", MARKS)
        out = add("Add", [entered, PAST[number]], f"out{number}")
        add("Identity", [PAST[number]], PRESENT[number])
        stream = add(LEAVE, [out], f"leave{number}", MARKS)
    add("Mul", [stream, read], "logits")
    graph = ir.Graph(
        [values[name] for name in ("x", *PAST[:2])],
        [values[name] for name in ("logits", *PRESENT[:2])],
        nodes=nodes,
        opset_imports={"": 24, MARKS: 1},
    )
    return ir.Model(graph, ir_version=10)


def repeated(model: ir.Model) -> ir.Model:
    blocks = Blocks(of_layers={"": [0, 0, 0, 1]}, stacks={"past_key_values": "", "present": ""})
    repeat(model, blocks, inputs=("x", *PAST), outputs=("logits", *PRESENT))
    return model


@pytest.mark.parametrize("read", ["out0", "leave0", "present.0.key"])
def test_blocks_that_share_more_than_the_stream_are_refused(read: str) -> None:
    with pytest.raises(UnlikeBlocksError):
        repeated(stepped(read))


def test_a_model_whose_blocks_are_refused_is_traced_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    depths = []

    def trace_entry(entry: program.Entry, *_: object) -> ir.Model:
        depths.append(len(entry.get_submodule("model.blocks")._modules))
        return stepped(read="out0")

    monkeypatch.setattr(program, "trace_entry", trace_entry)
    trace_decoder(llama(layers=4), dtype=torch.float32)
    assert depths == [2, 4]
