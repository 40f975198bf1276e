"""Time onnxruntime's attention over the vectors of an image that see each other (docs/adr/0046).

    python benchmarks/both_ways.py

One layer with the widths of Gemma 3 4B and the 256 vectors of an image, after tokens in a cache:
causal, without a mask, and without a mask but with a bias, as in layers with a window.
"""

import argparse
import os
import time

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped]
from onnx import TensorProto, helper

HEADS, KV_HEADS, WIDTH, VECTORS = 8, 4, 256, 256

BEFORE = (0, 1000, 4000, 16_000)
"""Tokens before the image."""

WAYS = {"causal": (1, False), "both ways": (0, False), "both ways, with a bias": (0, True)}
"""The attribute `causal`, and whether there is a bias."""


def session(causal: int, *, has_bias: bool) -> ort.InferenceSession:
    """A graph of one attention node."""
    names = ["qkv", "", "", "key", "value", "last", "total", "", "", "", "bias" if has_bias else ""]
    node = helper.make_node(
        "GroupQueryAttention",
        names if has_bias else names[:7],
        ["out", "new_key", "new_value"],
        domain="com.microsoft",
        num_heads=HEADS,
        kv_num_heads=KV_HEADS,
        causal=causal,
    )
    cache: list[int | str] = [1, KV_HEADS, "C", WIDTH]
    floats: dict[str, list[int | str]] = {
        "qkv": [1, "S", (HEADS + 2 * KV_HEADS) * WIDTH],
        "key": cache,
        "value": cache,
    }
    if has_bias:
        floats["bias"] = [1, 1, "S", "T"]
    inputs = [
        *(helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in floats.items()),
        helper.make_tensor_value_info("last", TensorProto.INT32, [1]),
        helper.make_tensor_value_info("total", TensorProto.INT32, []),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output]
    graph = helper.make_graph([node], "attention", inputs, outputs)
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def seconds(causal: int, before: int, rounds: int, *, has_bias: bool) -> float:
    """The shortest time of a call that extends its cache in place."""
    random, total = np.random.default_rng(0), before + VECTORS
    cache = random.normal(size=(1, KV_HEADS, total, WIDTH)).astype(np.float32)
    feeds = {
        "qkv": random.normal(size=(1, VECTORS, (HEADS + 2 * KV_HEADS) * WIDTH)).astype(np.float32),
        "key": cache,
        "value": cache.copy(),
        "last": np.array([total - 1], np.int32),
        "total": np.array(total, np.int32),
    }
    if has_bias:
        feeds["bias"] = np.zeros((1, 1, VECTORS, total), np.float32)
    opened = session(causal, has_bias=has_bias)
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    binding = opened.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("out")
    for name in ("key", "value"):
        binding.bind_ortvalue_output(f"new_{name}", values[name])
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        opened.run_with_iobinding(binding)
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    os.environ["ORT_GQA_DISABLE_FLASH_ATTENTION"] = "1"  # as the runtime chooses
    print(f"| tokens before, ms | {' | '.join(WAYS)} |")
    print(f"|---|{'---:|' * len(WAYS)}")
    for before in BEFORE:
        row = [
            f"{1000 * seconds(causal, before, options.rounds, has_bias=has_bias):.1f}"
            for causal, has_bias in WAYS.values()
        ]
        print(f"| {before} | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
