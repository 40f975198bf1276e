"""Graphs of one GroupQueryAttention node, and the ways to run them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from ortolan.export.passes.portable_bodies import attach_bodies
from ortolan.modeling.config import AttentionConfig, RotaryPositions
from ortolan.modeling.layers.cache import LayerCache, StepLengths
from ortolan.modeling.layers.nodes import Rotary
from ortolan.modeling.layers.ops import Heads, cached_attention, shared_attention
from ortolan.modeling.layers.positions import rotary_tables
from ortolan.modeling.layers.scores import Relative

CACHE = {"present_key": "past_key", "present_value": "past_value"}
"""Outputs that the runtime has written over an input."""

Shape = Sequence[str | int | None]
Values = dict[str, tuple[int, Shape]]
"""Types and shapes, by name."""

Arrays = dict[str, NDArray[np.generic]]
Run = Callable[[Arrays], list[NDArray[np.float32]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of attention, and its sizes.

    Attributes:
        by_row: the bias of each row is another.
        shared: no key is new: another layer has extended the cache.
    """

    heads: int = 4
    kv_heads: int = 2
    width: int = 32
    capacity: int = 16
    scale: float = 0.21
    rotated: int = 0
    window: int | None = None
    softcap: float | None = None
    biased: bool = False
    by_row: bool = False
    shared: bool = False
    apart: bool = False
    sinks: bool = False
    interleaved: bool = False

    @property
    def spec(self) -> AttentionConfig:
        return AttentionConfig(
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.width,
            scale=self.scale,
            sliding_window=self.window,
            softcap=self.softcap,
        )

    @property
    def rotary(self) -> Rotary | None:
        if self.rotated == 0:
            return None
        tables = rotary_tables(RotaryPositions(dim=self.rotated), self.capacity)
        return Rotary(*tables, interleaved=self.interleaved)

    @property
    def widths(self) -> tuple[int, int, int]:
        """Channels of queries, keys and values."""
        keys = self.kv_heads * self.width
        return self.heads * self.width, keys, keys


INPUTS = (
    *("query", "key", "value", "past_key", "past_value", "seqlens_k", "total"),
    *("cos", "sin", "", "bias", "sinks"),
)
"""Of the node, in order; nothing gives positions."""


def _inputs(kind: Kind) -> Values:
    """Types and shapes of what the graph of a kind takes."""
    cache: Shape = ["batch", kind.kv_heads, kind.capacity, kind.width]
    shapes: dict[str, Shape] = {
        "query": ["batch", "sequence", sum(kind.widths)],
        "past_key": cache,
        "past_value": cache,
    }
    if kind.apart or kind.shared:
        tokens = ["sequence", *["nothing" if kind.shared else "sequence"] * 2]
        shapes |= {
            name: ["batch", length, width]
            for name, length, width in zip(INPUTS[:3], tokens, kind.widths, strict=True)
        }
    if kind.rotary is not None:
        shapes |= {name: [kind.capacity, kind.rotated // 2] for name in ("cos", "sin")}
    if kind.biased:
        shapes["bias"] = ["batch" if kind.by_row else 1, kind.heads, "sequence", "longest"]
    if kind.sinks:
        shapes["sinks"] = [kind.heads]
    return {
        **{name: (TensorProto.FLOAT, shape) for name, shape in shapes.items()},
        "seqlens_k": (TensorProto.INT32, ["batch"]),
        "total": (TensorProto.INT32, []),
    }


def graph(kind: Kind) -> ModelProto:
    """What `modeling.ops` emits for this kind of attention."""
    inputs = _inputs(kind)
    outputs: Values = {"output": (TensorProto.FLOAT, ["batch", "sequence", kind.widths[0]])}
    if not kind.shared:
        outputs |= dict.fromkeys(CACHE, inputs["past_key"])
    return graph_of(kind.spec, inputs, outputs, interleaved=kind.interleaved)


def graph_of(
    spec: AttentionConfig, inputs: Values, outputs: Values, *, interleaved: bool, **attributes: Any
) -> ModelProto:
    names = [name if name in inputs else "" for name in INPUTS]
    while not names[-1]:
        names.pop()
    node = helper.make_node(
        "GroupQueryAttention",
        names,
        list(outputs),
        domain="com.microsoft",
        num_heads=spec.num_heads,
        kv_num_heads=spec.num_kv_heads,
        scale=spec.scale,
        do_rotary=int("cos" in inputs),
        local_window_size=spec.sliding_window or -1,
        softcap=spec.softcap or 0.0,
        **attributes,
    )
    if interleaved:
        node.attribute.append(helper.make_attribute("rotary_interleaved", 1))
    return helper.make_model(
        helper.make_graph(
            [node],
            "attention",
            [helper.make_tensor_value_info(name, *value) for name, value in inputs.items()],
            [helper.make_tensor_value_info(name, *value) for name, value in outputs.items()],
        ),
        ir_version=10,
        opset_imports=[helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)],
    )


def without_kernel(model: ModelProto) -> ModelProto:
    """The same graph in a domain that has no kernels: only the body is left."""
    moved = ModelProto()
    moved.CopyFrom(model)
    for part in (*moved.graph.node, *moved.functions):
        if part.domain == "com.microsoft":
            part.domain = "nobody"
    moved.opset_import.append(helper.make_opsetid("nobody", 1))
    return moved


def in_onnxruntime(model: ModelProto) -> Run:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    def run(inputs: Arrays) -> list[NDArray[np.float32]]:
        results: list[NDArray[np.float32]] = session.run(None, inputs)
        return results

    return run


def in_reference(model: ModelProto) -> Run:
    evaluator = ReferenceEvaluator(model)

    def run(inputs: Arrays) -> list[NDArray[np.float32]]:
        results = evaluator.run(None, inputs)
        assert isinstance(results, list)
        return results

    return run


def in_pytorch(kind: Kind) -> Run:
    def run(inputs: Arrays) -> list[NDArray[np.float32]]:
        given = {name: torch.from_numpy(np.asarray(value)) for name, value in inputs.items()}
        past = LayerCache(given["past_key"], given["past_value"])
        step = StepLengths(given["seqlens_k"], given["total"], int(given["total"]))
        sinks = given.get("sinks")
        if kind.shared:
            query = given["query"]
            spec, rotary = kind.spec, kind.rotary
            return [shared_attention(query, past, step, rotary, spec=spec, sinks=sinks).numpy()]
        output, present = cached_attention(
            Heads(given["query"], given["key"], given["value"]) if kind.apart else given["query"],
            past,
            step,
            kind.rotary,
            spec=kind.spec,
            relative=Relative(bias=given["bias"]) if kind.biased else None,
            sinks=sinks,
        )
        return [output.numpy(), present.key.numpy(), present.value.numpy()]

    return run


def with_bodies(fused: ModelProto) -> ModelProto:
    model = ir.from_proto(fused)
    attach_bodies(model)
    return ir.to_proto(model)


WAYS = ("kernel", "kernel with a body", "body in onnxruntime", "body in onnx.reference")


def ways(fused: ModelProto) -> dict[str, Run]:
    """Every way to compute the node of a graph."""
    portable = with_bodies(fused)
    return {
        "kernel": in_onnxruntime(fused),
        "kernel with a body": in_onnxruntime(portable),
        "body in onnxruntime": in_onnxruntime(without_kernel(portable)),
        "body in onnx.reference": in_reference(portable),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Steps of some rows: new tokens of each row (right padded to the longest), in order."""

    steps: Sequence[Sequence[int]]

    def run(self, kind: Kind, run: Run) -> list[NDArray[np.float32]]:
        """Outputs of every step's valid tokens, then the valid part of the cache."""
        random = np.random.default_rng(3)
        batch = len(self.steps[0])
        lengths = np.zeros(batch, np.int32)
        # What lies past a row's length must not matter, so it is not zero.
        cache = (batch, kind.kv_heads, kind.capacity, kind.width)
        key, value = (random.normal(size=cache).astype("f") for _ in range(2))
        collected = []
        for new in self.steps:
            lengths = lengths + np.array(new, np.int32)
            query = random.normal(size=(batch, max(new), sum(kind.widths))).astype(np.float32)
            inputs: Arrays = {
                "query": query,
                "past_key": key,
                "past_value": value,
                "seqlens_k": lengths - 1,
                "total": np.array(lengths.max(), np.int32),
            }
            if kind.apart or kind.shared:
                inputs |= dict(zip(("query", "key", "value"), _cut(query, kind), strict=True))
            if kind.shared:
                inputs |= {name: inputs[name][:, :0] for name in ("key", "value")}
            if kind.sinks:
                inputs["sinks"] = np.linspace(-1, 2, kind.heads, dtype=np.float32)
            if kind.rotary is not None:
                inputs |= {"cos": kind.rotary[0].numpy(), "sin": kind.rotary[1].numpy()}
            if kind.biased:
                shape = (batch if kind.by_row else 1, kind.heads, max(new), int(lengths.max()))
                inputs["bias"] = random.normal(size=shape).astype(np.float32)
            output, *present = run(inputs)
            if present:
                key, value = present
            collected += [output[row, :count] for row, count in enumerate(new)]
        for row, length in enumerate(lengths):
            collected += [key[row, :, :length], value[row, :, :length]]
        return collected


def _cut(packed: NDArray[np.float32], kind: Kind) -> list[NDArray[np.float32]]:
    ends = np.cumsum(kind.widths)[:2]
    return [np.ascontiguousarray(part) for part in np.split(packed, ends, -1)]


CONVERSATIONS = {
    "ragged prompt, then decode": Conversation(steps=[(6, 4), (1, 1), (1, 1), (1, 1)]),
    "one token, then decode": Conversation(steps=[(1,), (1,), (1,)]),
    "prompt, chunk over a past, decode": Conversation(steps=[(3,), (5,), (4,), (1,)]),
    "up to the capacity": Conversation(steps=[(15,), (1,)]),
}

KINDS = {
    "plain": Kind(),
    "rotary": Kind(rotated=32),
    "partial rotary": Kind(rotated=16),
    "interleaved": Kind(rotated=32, interleaved=True),
    "interleaved, partial": Kind(rotated=16, interleaved=True),
    "window": Kind(rotated=32, window=4),
    "window of one": Kind(window=1),
    "softcap": Kind(softcap=2.0),
    "bias": Kind(biased=True),
    "bias, window and softcap": Kind(biased=True, window=5, softcap=1.0),
    "all": Kind(rotated=16, window=5, softcap=3.0),
    "apart": Kind(apart=True, softcap=2.0),
    "apart, rotary": Kind(apart=True, rotated=16, window=5),
    "apart, interleaved": Kind(apart=True, rotated=16, interleaved=True),
    "another layer's cache": Kind(shared=True, window=5),
    "another layer's cache, rotary": Kind(shared=True, rotated=32, window=5),
}

SINKS = {
    "sinks": Kind(sinks=True),
    "sinks, rotary and window": Kind(sinks=True, rotated=32, window=3, apart=True),
    "sinks and softcap": Kind(sinks=True, softcap=1.5),
    "sinks and bias": Kind(sinks=True, biased=True, window=5),
}
"""Kinds without a body of standard operators."""
