"""Compare the kernels that onnxruntime chooses with another form of the same computation.

    python benchmarks/kernel_forms.py
    python benchmarks/kernel_forms.py --threads 1 -r 3

Runs both forms on the same inputs, checks that they agree, and lets them alternate. Prints the
median time of one computation, and the median time of the second form relative to the first
(docs/adr/0011-kernel-choices.md).
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import starmap
from math import ceil
from statistics import median
from typing import Any

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx import NodeProto, ValueInfoProto, helper, numpy_helper

import report
from script import add_timing, exit_status

Arrays = dict[str, NDArray[Any]]
Shape = tuple[int, ...]
MakeNode = Callable[[list[str], list[str]], NodeProto]

NORMS = ((1, 192), (16, 192), (64, 384), (128, 576), (1, 2048), (128, 2048))
GELUS = ((1, 512), (16, 512), (128, 1536))
ATTENTIONS = (
    (1, 16, 0, 9, 3, 64),
    (1, 128, 0, 4, 4, 32),
    (1, 128, 0, 32, 8, 64),
    (1, 512, 0, 32, 8, 64),
    (1, 512, 1536, 32, 8, 64),
    (1, 512, 7680, 32, 8, 64),
    (1, 8, 2048, 32, 8, 64),
    (1, 512, 512, 16, 4, 128),
    *((rows, 1, before, 6, 6, 32) for rows in (1, 4, 32) for before in (7, 31, 127)),
    *((rows, 1, before, 8, 8, 64) for rows in (1, 4) for before in (7, 31, 127)),
    (1, 1, 159, 9, 3, 64),
    (1, 1, 511, 32, 8, 64),
)
"""Rows, new tokens, tokens before them, heads, key/value heads, head width."""

PRODUCTS = ((1, 192, 192), (16, 192, 512), (128, 512, 192), (1, 2048, 2048), (128, 2048, 2048))
"""Rows, columns of the activations, columns of the product."""

CHAIN = 16
COPIES = 2  # attention takes long enough for two
MICROSOFT = "com.microsoft"
SWITCH = "ORT_GQA_DISABLE_FLASH_ATTENTION"
TOLERANCE = 1e-3  # rounding errors add up along a chain
TURN_S = 0.02
PAUSE_S = 0.1  # the threads of the previous session keep spinning for a moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One computation of one size.

    Attributes:
        size: label in the table.
        forms: nodes of the form that onnxruntime chooses, and of the other one.
        copies: computations per call, which share the overhead of the call.
        inputs: arrays by name.
        outputs: arrays by name; one that is also an input is updated in place.
        constants: arrays by name, which kernels may rearrange in advance.
    """

    size: str
    forms: tuple[Sequence[NodeProto], Sequence[NodeProto]]
    copies: int
    inputs: Arrays
    outputs: Arrays
    constants: Arrays = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A form in its own session, with its bound arrays."""

    session: Any
    binding: Any
    inputs: Arrays
    outputs: Arrays

    def seconds(self, calls: int) -> float:
        """Mean seconds per call."""
        start = time.perf_counter()
        for _ in range(calls):
            self.session.run_with_iobinding(self.binding)
        return (time.perf_counter() - start) / calls


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Compare forms of a computation.")
    add_timing(parser, rounds=7)
    return parser.parse_args(arguments)


def drawn(shapes: Mapping[str, Shape]) -> Arrays:
    """Random arrays."""
    random = np.random.default_rng(0)
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def norm(rows: int, width: int) -> Case:
    """A chain of sums, each followed by a norm."""
    operands = {"skip": (1, rows, width), "scale": (width,), "bias": (width,)}
    one = partial(helper.make_node, "SkipLayerNormalization", domain=MICROSOFT, epsilon=1e-5)
    other = partial(helper.make_node, "LayerNormalization", epsilon=1e-5)
    return fusion(one, other, rows, width, operands=operands)


def gelu(rows: int, width: int) -> Case:
    """A chain of biases, each followed by a Gelu."""
    one = partial(helper.make_node, "BiasGelu", domain=MICROSOFT)
    other = partial(helper.make_node, "Gelu")
    return fusion(one, other, rows, width, operands={"bias": (width,)})


def fusion(
    one: MakeNode, other: MakeNode, rows: int, width: int, *, operands: Mapping[str, Shape]
) -> Case:
    """A chain of fused nodes, against an Add of the first operand and a node with the others."""
    first, *others = operands
    fused, apart = [], []
    for i in range(CHAIN):
        x, total, y = f"x{i}", f"sum{i}", f"x{i + 1}"
        fused.append(one([x, *operands], [y]))
        apart += [helper.make_node("Add", [x, first], [total]), other([total, *others], [y])]
    shape = (1, rows, width)
    return Case(
        size=f"{rows}x{width}",
        forms=(fused, apart),
        copies=CHAIN,
        inputs=drawn({"x0": shape, **operands}),
        outputs={f"x{CHAIN}": np.empty(shape, np.float32)},
    )


def attention(
    rows: int, new_tokens: int, before: int, heads: int, kv_heads: int, width: int
) -> Case:
    """Attention after a cache; all copies write the same values to the same places."""
    total = before + new_tokens
    cache = (rows, kv_heads, total, width)
    packed = (rows, new_tokens, (heads + 2 * kv_heads) * width)
    inputs = drawn({"packed": packed, "past_key": cache, "past_value": cache})
    inputs |= {"last": np.full(rows, total - 1, np.int32), "total": np.array(total, np.int32)}
    read = ["packed", "", "", "past_key", "past_value", "last", "total"]
    make = partial(helper.make_node, "GroupQueryAttention", read, domain=MICROSOFT)
    nodes, outputs = [], {}
    for i in range(COPIES):
        y, key, value = f"y{i}", f"key{i}", f"value{i}"
        nodes.append(make([y, key, value], num_heads=heads, kv_num_heads=kv_heads))
        outputs[y] = np.empty((rows, new_tokens, heads * width), np.float32)
        outputs |= {key: inputs["past_key"], value: inputs["past_value"]}
    return Case(
        size=f"{rows}x{new_tokens} after {before}, {heads}/{kv_heads} heads of {width}",
        forms=(nodes, nodes),
        copies=COPIES,
        inputs=inputs,
        outputs=outputs,
    )


def product(rows: int, inner: int, outer: int) -> Case:
    """Products with 8-bit weights, signed and unsigned, small enough that neither saturates."""
    signed = np.random.default_rng(0).integers(-63, 64, (inner, outer), np.int8)
    constants: Arrays = {
        "signed": signed,
        "unsigned": (signed.astype(np.int16) + 128).astype(np.uint8),
        "scales": np.full(outer, 1e-3, np.float32),
        "middle": np.array(128, np.uint8),
    }
    make = partial(helper.make_node, "DynamicQuantizeMatMul", domain=MICROSOFT)
    names = [f"y{i}" for i in range(COPIES)]
    return Case(
        size=f"{rows} x {inner} x {outer}",
        forms=(
            [make(["x", "signed", "scales"], [name]) for name in names],
            [make(["x", "unsigned", "scales", "middle"], [name]) for name in names],
        ),
        copies=COPIES,
        inputs=drawn({"x": (1, rows, inner)}),
        outputs={name: np.empty((1, rows, outer), np.float32) for name in names},
        constants=constants,
    )


@contextmanager
def switched(value: str) -> Iterator[None]:
    """Set the variable that onnxruntime reads when it creates GroupQueryAttention kernels."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = value
    try:
        yield
    finally:
        del os.environ[SWITCH]
        if before is not None:
            os.environ[SWITCH] = before


def declared(arrays: Arrays) -> list[ValueInfoProto]:
    """Inputs or outputs of a graph."""
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in arrays.items()}
    return [helper.make_tensor_value_info(name, kinds[name], arrays[name].shape) for name in kinds]


def bind(case: Case, form: int, *, threads: int) -> Bound:
    """Open one of the forms."""
    # Copied together, so that an array that is both input and output stays a single one.
    inputs, outputs = deepcopy((case.inputs, case.outputs))
    used = {name for node in case.forms[form] for name in node.input}
    constants = [
        numpy_helper.from_array(array, name)
        for name, array in case.constants.items()
        if name in used
    ]
    model = helper.make_model(
        helper.make_graph(case.forms[form], "form", declared(inputs), declared(outputs), constants),
        opset_imports=[helper.make_opsetid("", 24), helper.make_opsetid(MICROSOFT, 1)],
        ir_version=10,
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    # Otherwise onnxruntime would fuse the second form.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    # Ignored by computations without attention.
    with switched(str(form)):
        data = model.SerializeToString()
        session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
    for name, array in outputs.items():
        binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))
    return Bound(session=session, binding=binding, inputs=inputs, outputs=outputs)


def row(case: Case, *, threads: int, rounds: int) -> list[str]:
    """Measure both forms alternately; return a row of the table."""
    forms = [bind(case, form, threads=threads) for form in (0, 1)]
    calls = [ceil(TURN_S / min(form.seconds(1) for _ in range(2))) for form in forms]
    for name, expected in forms[0].outputs.items():
        actual = forms[1].outputs[name]
        if not np.allclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE):
            apart = np.abs(actual - expected).max()
            raise ValueError(f"{case.size}: {name}: the forms differ by {apart}")
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for form in (0, 1) if number % 2 == 0 else (1, 0):
            time.sleep(PAUSE_S)
            forms[form].seconds(1)
            times[form].append(forms[form].seconds(calls[form]) / case.copies)
    share = median(second / first for first, second in zip(*times, strict=True))
    return [case.size, *(f"{1e6 * median(taken):.1f}" for taken in times), f"{share:.2f}"]


def side_by_side(args: argparse.Namespace) -> None:
    """Measure and print."""
    machine = report.machine()
    print(f"# Kernels, {args.threads} threads\n")
    print(f"{machine['processor']}, {machine['cores']} cores, {args.rounds} rounds.\n")
    for size, one, other, cases in (
        ("rows x width", "SkipLayerNormalization", "Add, LayerNormalization", starmap(norm, NORMS)),
        ("rows x width", "BiasGelu", "Add, Gelu", starmap(gelu, GELUS)),
        ("rows and columns", "signed weights", "unsigned weights", starmap(product, PRODUCTS)),
        ("new tokens", "attention in tiles", "with all scores", starmap(attention, ATTENTIONS)),
    ):
        rows = [row(case, threads=args.threads, rounds=args.rounds) for case in cases]
        header = [size, f"{one}, us", f"{other}, us", "second / first"]
        print(report.table(header, rows), end="\n\n", flush=True)
    print(report.with_versions({"kernels": {"onnxruntime": ort.__version__}}), end="")


if __name__ == "__main__":
    sys.exit(exit_status(side_by_side, parse()))
