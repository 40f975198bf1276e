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

_TABLE = """
types of the CPU      | types of CUDA                | operators
numbers               | numbers halves               | Add Div Mul Sub
numbers               | float32 float16              | Abs
numbers               | float32 float16 counts       | GreaterOrEqual Less LessOrEqual
numbers               | float32 halves counts uint8  | Where
numbers bool          | float32 float16 counts bool  | Equal
numbers bool          |                              | ReduceMax
numbers float16       | float32 float16              | Max
numbers float16       | float32 float16 int64 bytes  | Clip
numbers float16 bool  | numbers halves bool          | Expand
numbers halves bool   | numbers halves bool          | Concat Gather GatherElements Identity Reshape
numbers halves bool   | numbers halves bool          | Shape Slice Split Squeeze Unsqueeze
numbers halves bool   | numbers halves bool          | TensorScatter
numbers halves bool   | float32 halves int64 bool    | GatherND
numbers halves bool nibbles | numbers halves bool    | Cast Transpose
bool                  | bool                         | And Not
float32               | float32 halves               | Conv Gelu Gemm Sigmoid Softmax Tanh
float32               | float32 halves               | ms:FusedMatMul ms:MoE
float32               | float32 float16              | ms:CausalConvWithState ms:LinearAttention
float32               |                              | ms:DynamicQuantizeMatMul
float32 counts        | float32 halves               | MatMul
float32 counts        | float32 counts               | Range
float32 counts        | float32 float16 int32        | ReduceL2
float32 counts        | float32 halves int32         | ReduceMean
float32 counts        | float32 halves counts        | ReduceSum
float32 int32 int8    | float32 halves               | Relu
float32 float16       | float32 halves               | Attention RMSNormalization RotaryEmbedding
float32 float16       | float32 halves               | ms:GatherBlockQuantized ms:MatMulNBits
float32 float16       | float32 float16              | DequantizeLinear
float32 float16       | halves                       | ms:GroupQueryAttention ms:QMoE
float32 float16       |                              | QuantizeLinear
float32 halves        | float32 halves               | LayerNormalization
float32 halves        | float32 halves               | ms:SkipSimplifiedLayerNormalization
bytes                 |                              | ms:MatMulIntegerToFloat
"""

_GROUPS = {
    "bytes": "int8 uint8",
    "counts": "int64 int32",
    "halves": "float16 bfloat16",
    "nibbles": "int4 uint4",
    "numbers": "float32 int64 int32 int8 uint8",
}


class Kernels(NamedTuple):
    """Element types with a kernel, by device."""

    cpu: frozenset[str]
    cuda: frozenset[str]


def _types(names: str) -> frozenset[str]:
    return frozenset(" ".join(_GROUPS.get(name, name) for name in names.split()).split())


def _operator(name: str) -> str:
    return name.replace("ms:", "com.microsoft::") if ":" in name else f"ai.onnx::{name}"


_ROWS = [line.split("|") for line in _TABLE.strip().splitlines()[1:]]

KERNELS = {
    _operator(name): Kernels(_types(cpu), _types(cuda))
    for cpu, cuda, names in _ROWS
    for name in names.split()
}
"""Kernels by `domain::op_type`. At run time `Constant` is a tensor and `CastLike` a `Cast`."""

TYPES = _types("numbers halves bool nibbles")
"""Element types that the table covers."""

DECISIVE_INPUT = {
    "ai.onnx::DequantizeLinear": 1,  # scales: both devices accept the same codes
    "ai.onnx::Where": 1,
    "com.microsoft::GatherBlockQuantized": 2,  # scales
}
"""Index of the decisive input, if it is not 0."""
