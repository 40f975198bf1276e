"""Time a decode step of attention with few key/value heads for many query heads.

GroupQueryAttention reads the cache of a head once per query head. Folded, the query heads of a
key/value head are rows of one product: queries `(B, H, 1, D)` become `(B, K, H/K, D)`, and the
standard Attention node computes them against the same cache. Both rotate, extend the cache in
place, and attend to `T` tokens. Runs alternate; ratios are medians.

    python benchmarks/folded_heads.py [--threads N] [--rounds N]

Shape letters: H query heads, K key/value heads, D head width, C capacity, T tokens attended to.
"""

import argparse
import statistics
import time
from typing import Any

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped]
from onnx import ModelProto, TensorProto, helper

CAPACITY = 4096
SHAPES = {
    "gemma3-1b": (4, 1, 256),
    "qwen2-0.5b": (14, 2, 64),
    "qwen3.5": (8, 2, 256),
    "llama-3.2-1b": (32, 8, 64),
    "qwen3-0.6b": (16, 8, 128),
}
"""H, K and D of popular models."""

LENGTHS = (128, 512, 2048, 4000)

FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64


def model(heads: int, kv_heads: int, width: int, *, folded: bool) -> ModelProto:
    """Graph of one decode step of one layer."""
    cache: list[str | int | None] = ["B", kv_heads, CAPACITY, width]
    value = helper.make_tensor_value_info
    inputs = [
        value("q", FLOAT, ["B", 1, heads * width]),
        value("k", FLOAT, ["B", 1, kv_heads * width]),
        value("v", FLOAT, ["B", 1, kv_heads * width]),
        value("past_key", FLOAT, cache),
        value("past_value", FLOAT, cache),
        value("last", INT32, ["B"]),
        value("total", INT32, []),
        value("cos", FLOAT, [CAPACITY, width // 2]),
        value("sin", FLOAT, [CAPACITY, width // 2]),
    ]
    outputs = [
        value("out", FLOAT, ["B", 1, heads * width]),
        value("key", FLOAT, cache),
        value("value", FLOAT, cache),
    ]
    nodes, constants = (_folded if folded else _grouped)(heads, kv_heads, width)
    graph = helper.make_graph(nodes, "step", inputs, outputs, constants)
    imports = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _grouped(heads: int, kv_heads: int, width: int) -> tuple[list[Any], list[Any]]:
    node = helper.make_node(
        "GroupQueryAttention",
        ["q", "k", "v", "past_key", "past_value", "last", "total", "cos", "sin"],
        ["out", "key", "value"],
        domain="com.microsoft",
        num_heads=heads,
        kv_num_heads=kv_heads,
        scale=width**-0.5,
        do_rotary=1,
    )
    return [node], []


def _folded(heads: int, kv_heads: int, width: int) -> tuple[list[Any], list[Any]]:
    def constant(name: str, values: list[int]) -> Any:
        return helper.make_tensor(name, INT64, [len(values)], values)

    make = helper.make_node
    nodes = [
        make("Cast", ["last"], ["start"], to=INT64),
        make("Reshape", ["start", "column"], ["positions"]),
        make("RotaryEmbedding", ["q", "cos", "sin", "positions"], ["tq"], num_heads=heads),
        make("RotaryEmbedding", ["k", "cos", "sin", "positions"], ["tk"], num_heads=kv_heads),
        make("Reshape", ["tk", "one"], ["new_key"]),
        make("Reshape", ["v", "one"], ["new_value"]),
        make("TensorScatter", ["past_key", "new_key", "start"], ["key"], axis=2),
        make("TensorScatter", ["past_value", "new_value", "start"], ["value"], axis=2),
        make("Reshape", ["tq", "rows"], ["queries"]),
        make("Cast", ["total"], ["count"], to=INT64),
        make("Reshape", ["count", "each"], ["stop"]),
        make("Slice", ["key", "zero", "stop", "axis"], ["keys"]),
        make("Slice", ["value", "zero", "stop", "axis"], ["values"]),
        make("Attention", ["queries", "keys", "values"], ["heads"], scale=width**-0.5),
        make("Reshape", ["heads", "flat"], ["out"]),
    ]
    constants = [
        constant("column", [-1, 1]),
        constant("each", [1]),
        constant("zero", [0]),
        constant("axis", [2]),
        constant("one", [0, kv_heads, 1, width]),
        constant("rows", [0, kv_heads, heads // kv_heads, width]),
        constant("flat", [0, 1, heads * width]),
    ]
    return nodes, constants


class Step:
    """An onnxruntime session whose cache is both input and output."""

    def __init__(self, proto: ModelProto, shape: tuple[int, int, int], threads: int) -> None:
        heads, kv_heads, width = shape
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._session = ort.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        random = np.random.default_rng(0)
        angles = np.arange(CAPACITY)[:, None] * 10_000.0 ** (-np.arange(0, width, 2) / width)
        self._binding = self._session.io_binding()
        for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            self._bind(name, random.standard_normal((1, 1, count * width), np.float32))
        for name in ("key", "value"):
            buffer = ort.OrtValue.ortvalue_from_numpy(
                random.standard_normal((1, kv_heads, CAPACITY, width), np.float32)
            )
            self._binding.bind_ortvalue_input(f"past_{name}", buffer)
            self._binding.bind_ortvalue_output(name, buffer)
        self._bind("cos", np.cos(angles).astype(np.float32))
        self._bind("sin", np.sin(angles).astype(np.float32))
        self._out = ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 1, heads * width), np.float32))
        self._binding.bind_ortvalue_output("out", self._out)

    def run(self, length: int) -> tuple[float, Any]:
        """Seconds of a step that attends to `length` tokens, and its output."""
        self._bind("last", np.array([length - 1], np.int32))
        self._bind("total", np.array(length, np.int32))
        began = time.perf_counter()
        self._session.run_with_iobinding(self._binding)
        return time.perf_counter() - began, self._out.numpy().copy()

    def _bind(self, name: str, values: Any) -> None:
        self._binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(values))


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    print("shape         H/K/D       T   GQA us  folded us  GQA/folded  difference")
    for name, shape in SHAPES.items():
        steps = [
            Step(model(*shape, folded=folded), shape, options.threads) for folded in (False, True)
        ]
        for length in LENGTHS:
            pairs, outputs = [], [step.run(length)[1] for step in steps]
            for _ in range(options.rounds):
                pairs.append([step.run(length)[0] for step in steps])
            grouped, folded = (
                statistics.median(column) * 1e6 for column in zip(*pairs, strict=True)
            )
            ratio = statistics.median(one / other for one, other in pairs)
            error = float(np.abs(outputs[0] - outputs[1]).max())
            heads = "/".join(map(str, shape))
            print(
                f"{name:13} {heads:9} {length:5} {grouped:8.0f} {folded:10.0f} {ratio:11.2f} "
                f"{error:11.1e}"
            )


if __name__ == "__main__":
    main()
