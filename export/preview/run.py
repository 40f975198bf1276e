"""Predicts the speed and memory of a bundle, by timing products of the same shapes and formats.

The speed of a product depends on shapes, so no weights are read. The values of a sample are random:
products of equal weights read them faster than memory delivers.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from torch import nn

from ortolan.export.exportable import Exportable
from ortolan.export.parameters import is_matrix, weights_of
from ortolan.export.passes.nodes import CONTRIB
from ortolan.export.passes.quantize_weights import ACCURACY_LEVELS
from ortolan.export.quantize.schemes import scheme_of
from ortolan.export.scheme import Scheme
from ortolan.export.settings import Quantization
from ortolan.export.trace.program import OPSET
from ortolan.export.values import add_constant
from ortolan.runtime.bundle.manifest import State
from ortolan.runtime.engine.attention_kernels import GRID
from ortolan.runtime.engine.providers import ort
from ortolan.runtime.engine.threads import physical_cores
from ortolan.runtime.machine.huge_pages import collapse_later, pages_in_use
from ortolan.runtime.machine.memory import available_memory

PROMPT_TOKENS = 512
"""Length of the prompt that a prediction assumes."""

PROGRAM_BYTES = 110 << 20
"""Bytes of memory of a generating process without the model."""

LAYER_SECONDS = 20e-6
"""Seconds of a layer in a step of one token, products aside."""

CHANNEL_SECONDS = 12e-9
"""Seconds of a channel of a layer per token of a prompt, products aside."""

SAMPLE_BYTES = 384 << 20
"""Most bytes of weights of a sample: more than caches hold, so that a step reads memory."""

RANDOM_BYTES = 1 << 22
"""Random bytes that fill each weight of a sample, from another place on."""

STEPS, PROMPTS = 40, 3
"""Runs of a sample with a single token and with many, after a first one; their median counts."""

IR_VERSION = 10

Shape = tuple[int, int]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted speed and memory of a decoder on the CPU of this machine.

    Attributes:
        memory_bytes: of the process while it generates.
        first_token_seconds: for a prompt of `PROMPT_TOKENS`; None if memory does not suffice.
        tokens_per_second: after it; None if memory does not suffice.
    """

    memory_bytes: int
    first_token_seconds: float | None
    tokens_per_second: float | None


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds that products take here.

    Attributes:
        step: per weight, for one token.
        prompt: per weight and token, for the tokens of a prompt.
    """

    step: float
    prompt: float


@dataclass(frozen=True, slots=True)
class Product:
    """A weight that every token is multiplied by; `scheme` is None for float32."""

    shape: Shape
    scheme: Scheme | None
    is_head: bool

    @property
    def bits(self) -> int | None:
        """Bits of a code; None for float32."""
        return None if self.scheme is None else self.scheme.bits

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.shape[0] * self.shape[1]


def predict_run(
    model: Exportable, quantization: Quantization | None, *, more_bytes: int = 0
) -> Run | None:
    """Predict how a bundle will run, in a few seconds.

    Args:
        model: to export.
        quantization: of its weights.
        more_bytes: of weights of encoders in the bundle.

    Returns:
        None for other kinds than decoders, and where the time does not follow from the weights:
        with experts, and where tokens are read one by one.
    """
    if model.kind != "decoder" or model.takes_one or model.takes_one_on:
        return None
    products = _products_of(model, quantization)
    if not products:
        return None
    blocks = [product for product in products if not product.is_head] or products
    states = model.states("float32")
    memory = PROGRAM_BYTES + sum(map(_memory, products)) + sum(map(_state_bytes, states))
    memory += more_bytes
    free = available_memory()
    if free is not None and memory > free:
        return Run(memory_bytes=memory, first_token_seconds=None, tokens_per_second=None)
    shapes = [product.shape for product in blocks]
    schemes = {product.bits: product.scheme for product in products}
    paces = {bits: measure_pace(shapes, scheme) for bits, scheme in schemes.items()}
    step = sum(product.size * paces[product.bits].step for product in products)
    layers = len(states) / 2  # keys and values
    step += layers * LAYER_SECONDS
    prompt = sum(product.size * paces[product.bits].prompt for product in blocks)
    prompt += layers * CHANNEL_SECONDS * products[-1].shape[1]
    return Run(
        memory_bytes=memory,
        first_token_seconds=PROMPT_TOKENS * prompt,
        tokens_per_second=1 / step,
    )


def _products_of(model: Exportable, quantization: Quantization | None) -> list[Product]:
    """All products of a token, the head last; none if there are experts."""
    blocks, head = [], None
    for name, owner, weight in weights_of(model.module):
        if not is_matrix(model, owner, weight):
            continue
        if weight.dim() != 2:
            return []
        scheme = None
        if quantization is not None:
            scheme = scheme_of(name, weight.shape[1], quantization, model.weights)
        shape = (weight.shape[0], weight.shape[1])
        if len(weight) == model.vocab_size:  # the last one is the head, tied or not
            head = Product(shape, scheme, is_head=True)
        elif not isinstance(owner, nn.Embedding):
            blocks.append(Product(shape, scheme, is_head=False))
    return blocks if head is None else [*blocks, head]


def _memory(product: Product) -> int:
    """Bytes of a packed weight; its scales stay mapped besides."""
    if product.scheme is None:
        return 4 * product.size
    codes, scales, *others = product.scheme.sizes(*product.shape)
    return codes + 2 * scales + sum(others)


def _state_bytes(state: State) -> int:
    """Bytes of a state after the prompt."""
    return state.unit_bytes * (PROMPT_TOKENS if state.update == "append" else 1)


def measure_pace(shapes: Sequence[Shape], scheme: Scheme | None) -> Pace:
    """Time products with weights of these shapes.

    Args:
        shapes: rows and columns of the weights, in order.
        scheme: format of the weights; None for float32.
    """
    sample = _sample(shapes, scheme)
    weights = sum(rows * columns for rows, columns in sample)
    run = _timed(sample, scheme)
    step, prompt = run(1, STEPS), run(GRID, PROMPTS)
    return Pace(step / weights, prompt / weights / GRID)


def _sample(shapes: Sequence[Shape], scheme: Scheme | None) -> list[Shape]:
    """The first products, the last of them cut to fit."""
    taken: list[Shape] = []
    left = SAMPLE_BYTES
    for rows, columns in shapes:
        row_bytes = _row_bytes(columns, scheme)
        rows = min(rows, left // row_bytes)
        if not rows:
            break
        taken.append((rows, columns))
        left -= rows * row_bytes
    return taken


def _row_bytes(columns: int, scheme: Scheme | None) -> int:
    return 4 * columns if scheme is None else sum(scheme.sizes(1, columns))


def _timed(shapes: Sequence[Shape], scheme: Scheme | None) -> Callable[[int, int], float]:
    """Seconds of all products, as a function of the numbers of tokens and of runs."""
    random = np.random.default_rng(0)
    source = random.integers(0, 256, RANDOM_BYTES, np.uint8)
    kind = ir.TensorType(ir.DataType.FLOAT)
    inputs = {
        width: ir.Value(name=f"x{width}", shape=ir.Shape(["tokens", width]), type=kind)
        for _, width in shapes
    }
    opsets = {"": OPSET, CONTRIB: 1}
    graph = ir.Graph([*inputs.values()], [], nodes=[], opset_imports=opsets, name="products")
    for index, (rows, width) in enumerate(shapes):
        values = np.roll(source, random.integers(len(source)))
        product = _product(graph, f"w{index}", inputs[width], (rows, width), scheme, values)
        (output,) = product.outputs
        output.name, output.type = f"y{index}", kind
        graph.append(product)
        graph.outputs.append(output)
    before = pages_in_use()
    session = _session(ir.Model(graph, ir_version=IR_VERSION))
    if (collapsing := collapse_later(before)) is not None:  # as the engine does
        collapsing.join()

    def seconds(tokens: int, times: int) -> float:
        feed = {
            value.name: random.standard_normal((tokens, width), np.float32)
            for width, value in inputs.items()
        }
        taken = []
        for _ in range(1 + times):
            began = time.perf_counter()
            session.run(None, feed)
            taken.append(time.perf_counter() - began)
        return statistics.median(taken[1:])

    return seconds


def _product(
    graph: ir.Graph,
    name: str,
    x: ir.Value,
    shape: Shape,
    scheme: Scheme | None,
    values: NDArray[np.uint8],
) -> ir.Node:
    """The node that computes x @ w.T, as a bundle computes it; `values` are repeated to fill w."""
    rows, width = shape
    if scheme is None:
        weight = np.resize(values, (width, rows)).astype(np.float32)
        return ir.node("MatMul", [x, add_constant(graph, name, weight)])
    groups = scheme.groups(width)
    codes = np.resize(values, (rows, groups, scheme.group * scheme.bits // 8))
    inputs = [
        add_constant(graph, f"{name}.codes", codes),
        add_constant(graph, f"{name}.scales", np.ones((rows, groups), np.float32)),
    ]
    attributes = {
        "K": width,
        "N": rows,
        "bits": scheme.bits,
        "block_size": scheme.group,
        "accuracy_level": ACCURACY_LEVELS[ir.DataType.FLOAT],
    }
    return ir.node("MatMulNBits", [x, *inputs], attributes, domain=CONTRIB)


def _session(model: ir.Model) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = physical_cores()
    proto = ir.to_proto(model).SerializeToString()
    return ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
