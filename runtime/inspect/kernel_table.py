"""Which operators onnxruntime has a kernel for, on the CPU and on CUDA, by type of element.

A table, for the operators that exports contain, at opset 24, and the types that their tensors
have. Whether a kernel is fast, or right, takes a device to find out.

Source: the kernel registries of the packages onnxruntime and onnxruntime-gpu 1.31.1, of which a
test compares the first with the one that is installed. The second was read without a GPU, and
nothing was run on it; its rows of CausalConvWithState and LinearAttention are from the source of
their kernels (contrib_ops/cuda/bert).

Notes:
    * An operator has one decisive input, whose type is that of the computation. Where another
      has types of its own, such as codes of quantized weights, both devices take the same ones.
    * Kernels of `com.microsoft::GroupQueryAttention` for CUDA also demand sizes and options that
      no registry tells.
"""

from typing import NamedTuple

__all__ = ["DECISIVE_INPUT", "KERNELS", "TYPES", "Kernels"]


class Kernels(NamedTuple):
    """Types of elements that each device has a kernel for."""

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
"""Types of elements that the table speaks of."""

_ELEMENTWISE = Kernels(_NUMBERS, _NUMBERS | _HALVES)
_MOVES = Kernels(_ALL, _ALL)
_PRODUCT = Kernels(_SINGLE, _FLOATS)
_COMPARISON = Kernels(_NUMBERS, _COUNTS | _types("float32 float16"))
_NORM = Kernels(_FLOATS, _FLOATS)
_RECURRENT = Kernels(_SINGLE, _types("float32 float16"))
_TWO_FLOATS = Kernels(_types("float32 float16"), _FLOATS)

KERNELS: dict[str, Kernels] = {
    "ai.onnx::Add": _ELEMENTWISE,
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
    "ai.onnx::MatMul": Kernels(_SINGLE | _COUNTS, _FLOATS),
    "ai.onnx::Mul": _ELEMENTWISE,
    "ai.onnx::Not": Kernels(_BOOL, _BOOL),
    "ai.onnx::RMSNormalization": _TWO_FLOATS,
    "ai.onnx::Range": Kernels(_SINGLE | _COUNTS, _SINGLE | _COUNTS),
    "ai.onnx::ReduceL2": Kernels(_SINGLE | _COUNTS, _types("float32 float16 int32")),
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
    "com.microsoft::MatMulNBits": _TWO_FLOATS,
    "com.microsoft::MoE": _PRODUCT,
    "com.microsoft::QMoE": Kernels(_types("float32 float16"), _HALVES),
    "com.microsoft::SkipSimplifiedLayerNormalization": _NORM,
}
"""`domain::op_type` to its kernels. `Constant` and `CastLike` are not operators at run time: the
first becomes a tensor, the second a `Cast`."""

DECISIVE_INPUT = {
    "ai.onnx::DequantizeLinear": 1,  # scales: the codes are of the same types on both devices
    "ai.onnx::Where": 1,
    "com.microsoft::GatherBlockQuantized": 2,  # scales
}
"""The input whose type decides, where it is not the first."""
