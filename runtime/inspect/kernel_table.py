"""Kernels of onnxruntime on the CPU and on CUDA, by operator and element type.

The table covers operators of exports at opset 24. It does not say whether a kernel is fast or
correct.

Source: kernel registries of onnxruntime and onnxruntime-gpu 1.31.1. A test compares the CPU's with
the installed one. The CUDA registry was read without a GPU; its rows of CausalConvWithState and
LinearAttention come from the kernels' source (contrib_ops/cuda/bert).

* Each operator has one decisive input, whose type is that of the computation. Both devices accept
  the same types of other inputs, such as codes of quantized weights.
* CUDA's kernels of QuantizeLinear and ReduceMax are left out: only graphs for the CPU have these.
* CUDA kernels of `com.microsoft::GroupQueryAttention` also require sizes and options that no
  registry lists.
"""

from typing import NamedTuple


class Kernels(NamedTuple):
    """Element types with a kernel, by device."""

    cpu: frozenset[str]
    cuda: frozenset[str]


def _types(names: str) -> frozenset[str]:
    return frozenset(names.split())


_NONE = _types("")
_SINGLE = _types("float32")
_HALVES = _types("float16 bfloat16")
_FLOATS = _SINGLE | _HALVES
_BOOL = _types("bool")
_COUNTS = _types("int64 int32")
_NUMBERS = _SINGLE | _COUNTS | _types("int8 uint8")
_ALL = _NUMBERS | _HALVES | _BOOL
_NIBBLES = _types("int4 uint4")

TYPES = _ALL | _NIBBLES
"""Element types that the table covers."""

_ELEMENTWISE = Kernels(_NUMBERS, _NUMBERS | _HALVES)
_MOVES = Kernels(_ALL, _ALL)
_PRODUCT = Kernels(_SINGLE, _FLOATS)
_COMPARISON = Kernels(_NUMBERS, _COUNTS | _types("float32 float16"))
_NORM = Kernels(_FLOATS, _FLOATS)
_RECURRENT = Kernels(_SINGLE, _types("float32 float16"))
_TWO_FLOATS = Kernels(_types("float32 float16"), _FLOATS)

KERNELS: dict[str, Kernels] = {
    "ai.onnx::Abs": Kernels(_NUMBERS, _types("float32 float16")),
    "ai.onnx::Add": _ELEMENTWISE,
    "ai.onnx::And": Kernels(_BOOL, _BOOL),
    "ai.onnx::Attention": _TWO_FLOATS,
    "ai.onnx::Cast": Kernels(TYPES, _ALL),
    "ai.onnx::Clip": Kernels(
        _NUMBERS | _types("float16"), _types("float32 float16 int64 int8 uint8")
    ),
    "ai.onnx::Concat": _MOVES,
    "ai.onnx::Conv": _PRODUCT,
    "ai.onnx::DequantizeLinear": Kernels(_types("float32 float16"), _types("float32 float16")),
    "ai.onnx::Div": _ELEMENTWISE,
    "ai.onnx::Equal": Kernels(_NUMBERS | _BOOL, _COUNTS | _BOOL | _types("float32 float16")),
    "ai.onnx::Expand": Kernels(_ALL - _types("bfloat16"), _ALL),
    "ai.onnx::Gather": _MOVES,
    "ai.onnx::GatherElements": _MOVES,
    "ai.onnx::GatherND": Kernels(_ALL, _FLOATS | _BOOL | _types("int64")),
    "ai.onnx::Gelu": _PRODUCT,
    "ai.onnx::Gemm": _PRODUCT,
    "ai.onnx::GreaterOrEqual": _COMPARISON,
    "ai.onnx::Identity": _MOVES,
    "ai.onnx::LayerNormalization": _NORM,
    "ai.onnx::Less": _COMPARISON,
    "ai.onnx::LessOrEqual": _COMPARISON,
    "ai.onnx::MatMul": Kernels(_SINGLE | _COUNTS, _FLOATS),
    "ai.onnx::Max": Kernels(_NUMBERS | _types("float16"), _types("float32 float16")),
    "ai.onnx::Mul": _ELEMENTWISE,
    "ai.onnx::Not": Kernels(_BOOL, _BOOL),
    "ai.onnx::QuantizeLinear": Kernels(_types("float32 float16"), _NONE),
    "ai.onnx::RMSNormalization": _TWO_FLOATS,
    "ai.onnx::Range": Kernels(_SINGLE | _COUNTS, _SINGLE | _COUNTS),
    "ai.onnx::ReduceL2": Kernels(_SINGLE | _COUNTS, _types("float32 float16 int32")),
    "ai.onnx::ReduceMax": Kernels(_NUMBERS | _BOOL, _NONE),
    "ai.onnx::ReduceMean": Kernels(_SINGLE | _COUNTS, _FLOATS | _types("int32")),
    "ai.onnx::ReduceSum": Kernels(_SINGLE | _COUNTS, _FLOATS | _COUNTS),
    "ai.onnx::Relu": Kernels(_types("float32 int8 int32"), _FLOATS),
    "ai.onnx::Reshape": _MOVES,
    "ai.onnx::RotaryEmbedding": _TWO_FLOATS,
    "ai.onnx::Shape": _MOVES,
    "ai.onnx::Sigmoid": _PRODUCT,
    "ai.onnx::Slice": _MOVES,
    "ai.onnx::Softmax": _PRODUCT,
    "ai.onnx::Split": _MOVES,
    "ai.onnx::Squeeze": _MOVES,
    "ai.onnx::Sub": _ELEMENTWISE,
    "ai.onnx::Tanh": _PRODUCT,
    "ai.onnx::TensorScatter": _MOVES,
    "ai.onnx::Transpose": Kernels(TYPES, _ALL),
    "ai.onnx::Unsqueeze": _MOVES,
    "ai.onnx::Where": Kernels(_NUMBERS, _FLOATS | _COUNTS | _types("uint8")),
    "com.microsoft::CausalConvWithState": _RECURRENT,
    "com.microsoft::DynamicQuantizeMatMul": Kernels(_SINGLE, _NONE),
    "com.microsoft::FusedMatMul": _PRODUCT,
    "com.microsoft::GatherBlockQuantized": _TWO_FLOATS,
    "com.microsoft::GroupQueryAttention": Kernels(_types("float32 float16"), _HALVES),
    "com.microsoft::LinearAttention": _RECURRENT,
    "com.microsoft::MatMulIntegerToFloat": Kernels(_types("int8 uint8"), _NONE),
    "com.microsoft::MatMulNBits": _TWO_FLOATS,
    "com.microsoft::MoE": _PRODUCT,
    "com.microsoft::QMoE": Kernels(_types("float32 float16"), _HALVES),
    "com.microsoft::SkipSimplifiedLayerNormalization": _NORM,
}
"""Kernels by `domain::op_type`. At run time `Constant` is a tensor and `CastLike` a `Cast`."""

DECISIVE_INPUT = {
    "ai.onnx::DequantizeLinear": 1,  # scales: both devices accept the same codes
    "ai.onnx::Where": 1,
    "com.microsoft::GatherBlockQuantized": 2,  # scales
}
"""Index of the decisive input, if it is not 0."""
