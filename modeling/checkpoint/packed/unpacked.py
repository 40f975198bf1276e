"""Tensors as floating-point numbers, however their files store them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from ortolan.modeling.checkpoint.file_tensors import FileTensors, tensors_of
from ortolan.modeling.checkpoint.packed.layout import FLOATS, check_parts
from ortolan.modeling.checkpoint.packed.methods import OUTPUTS_FIRST, packings
from ortolan.modeling.checkpoint.pickles import read_pickle
from ortolan.modeling.checkpoint.safetensors import read_safetensors
from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.lazy_tensor import LazyTensor, stored_tensor


def open_files(
    paths: Sequence[Path], quantization: Mapping[str, object] | None = None
) -> FileTensors:
    """Tensors of files, all as floating-point numbers, dequantized as they are read."""
    is_safe = paths[0].suffix == ".safetensors"
    files = tensors_of(paths, read_safetensors if is_safe else read_pickle)
    stored = files.tensors
    packed = {} if quantization is None else packings(quantization, stored)
    outputs_first = (quantization or {}).get("quant_method") in OUTPUTS_FIRST
    parts: set[str] = set()
    for name, packing in packed.items():
        check_parts(name, packing.parts, stored)
        packing.check(stored)
        parts |= packing.parts.keys()
    tensors = {name: _floats(name, t) for name, t in stored.items() if name not in parts}
    tensors |= {
        name: packing.tensor(stored, outputs_first=outputs_first)
        for name, packing in packed.items()
    }
    return replace(files, tensors=tensors, is_quantized=bool(packed))


def _floats(name: str, tensor: LazyTensor) -> LazyTensor:
    """The tensor; reading it is an error if it does not hold floating-point numbers."""
    if tensor.dtype in FLOATS:
        return tensor

    def read(start: int, stop: int, axis: int) -> Tensor:
        dtype = tensor.read(start, stop, axis).dtype
        raise CheckpointError(
            f"{name}: the dtype must be bf16, fp16 or fp32 (got {dtype}). Export the checkpoint "
            "that this one was quantized from."
        )

    return stored_tensor(tensor.shape, read, tensor.dtype)
