"""Quantization methods: which stored tensors make up which published ones.

Sources: the formats written by AutoGPTQ, AutoAWQ, compressed-tensors, bitsandbytes and transformers
(`quantization_config` in config.json).
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

from ortolan.modeling.checkpoint.packed.compressed import compressed
from ortolan.modeling.checkpoint.packed.floats import EIGHT_BITS, Blockwise, Mxfp4, Scaled
from ortolan.modeling.checkpoint.packed.integers import AWQ_ORDER, WORD_BITS, Columns
from ortolan.modeling.checkpoint.packed.layout import (
    Part,
    Values,
    block_size,
    blocks,
    matrix,
    one_of,
    optional_bool,
    unsupported,
)
from ortolan.modeling.codes import CodedRows, CodeFormat
from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.weights import TensorSource


class Packing(Protocol):
    """Decodes a published tensor from stored ones."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the published tensor."""
        ...

    @property
    def parts(self) -> Mapping[str, Part]:
        """Its stored tensors by name, with the shapes and types that the config implies."""
        ...

    def check(self, source: TensorSource) -> None:
        """Check what their shapes and types do not tell; raise CheckpointError."""
        ...

    def rows(self, source: TensorSource, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]`, dequantized."""
        ...

    def code_format(self, source: TensorSource) -> CodeFormat | None:
        """Format of its codes; None if kernels cannot use them unchanged."""
        ...

    def codes(self, source: TensorSource, start: int, stop: int) -> CodedRows:
        """Codes of rows `[start:stop]` in that format."""
        ...


Found = Iterator[tuple[str, Packing]]

OUTPUTS_FIRST = ("gptq", "awq", "bitsandbytes")
"""Methods that quantize a layer with its outputs first, even if it is published transposed."""

AWQ = ("gemm",)
"""Orders of AWQ's codes."""

DEFAULT_BLOCK = (128, 128)
"""Rows and columns that share a scale if an FP8 config does not say."""

ROW_MAJOR = 0
"""Format of 8-bit weights of bitsandbytes that are stored row by row."""


def packings(values: Values, source: TensorSource) -> dict[str, Packing]:
    """Packed tensors of a checkpoint, by their published names."""
    method = values.get("quant_method")
    read = METHODS.get(method) if isinstance(method, str) else None
    if read is None:
        raise unsupported("quant_method", ", ".join(METHODS), method)
    try:
        return dict(read(values, source))
    except re.error as error:
        raise unsupported("patterns", "regular expressions", error.pattern) from error
    except (KeyError, ValueError, TypeError, IndexError, ZeroDivisionError) as error:
        raise CheckpointError(
            f"quantization_config: tensors of the method {method} are missing or malformed: "
            f"{str(error).strip()!r:.120}. The download is incomplete."
        ) from error


def _gptq(values: Values, source: TensorSource) -> Found:
    version = str(values.get("checkpoint_format") or values.get("format") or "gptq").lower()
    one_of("checkpoint_format", version, ("gptq", "gptq_v2"))
    if values.get("adapter"):
        raise unsupported("adapter", "absent", values["adapter"])
    for name, (rows, outputs) in _matrices(source, ".qweight"):
        stem = name.removesuffix("qweight")
        own = _of_layer(values, stem.removesuffix("."))
        bits = one_of("bits", own.get("bits"), (2, 4, 8))
        inputs = rows * WORD_BITS // bits
        index = f"{stem}g_idx"
        ordered = optional_bool("desc_act", own.get("desc_act"))
        yield (
            f"{stem}weight",
            Columns(
                stem=stem,
                shape=(outputs, inputs),
                bits=bits,
                size=_group_size(own, inputs),
                index=index if index in source.shapes() or ordered else None,
                symmetric=optional_bool("sym", own.get("sym")),
                ordered=ordered,
                columns=None,
                less_one=version == "gptq",
            ),
        )


def _of_layer(values: Values, layer: str) -> Values:
    """The config for one layer: the first pattern of `dynamic` that matches it has precedence."""
    dynamic = values.get("dynamic") or {}
    if not isinstance(dynamic, dict):
        raise unsupported("dynamic", "an object", dynamic)
    for pattern, own in dynamic.items():
        if not pattern.startswith("-:") and re.match(pattern.removeprefix("+:"), layer):
            return {**values, **own}
    return values


def _awq(values: Values, source: TensorSource) -> Found:
    bits = one_of("bits", values.get("bits", values.get("w_bit")), (4,))
    one_of("version", str(values.get("version") or values.get("format") or "gemm").lower(), AWQ)
    one_of("backend", "llm-awq" if values.get("backend") == "llm-awq" else None, (None,))
    has_zeros = optional_bool("zero_point", values.get("zero_point"))
    for name, (inputs, columns) in _matrices(source, ".qweight"):
        stem = name.removesuffix("qweight")
        yield (
            f"{stem}weight",
            Columns(
                stem=stem,
                shape=(columns * WORD_BITS // bits, inputs),
                bits=bits,
                size=_group_size(values, inputs),
                index=None,
                symmetric=has_zeros is False,
                ordered=None,
                columns=AWQ_ORDER,
                less_one=False,
            ),
        )


def _group_size(values: Values, inputs: int) -> int:
    """Inputs that share a scale; -1 stands for all."""
    size = values.get("group_size", values.get("q_group_size"))
    if type(size) is not int or (size < 1 and size != -1):
        raise unsupported("group_size", "-1 or a positive integer", size)
    return inputs if size == -1 else min(size, inputs)


def _fp8(values: Values, source: TensorSource) -> Found:
    """A scale per block of the declared size, per row or per tensor."""
    declared = values.get("weight_block_size", DEFAULT_BLOCK)
    sizes = None if declared is None else block_size("weight_block_size", declared)
    shapes = source.shapes()
    for name in shapes:
        scales = [key for key in (f"{name}_scale_inv", f"{name}_scale") if key in shapes]
        if not scales:
            continue
        (_, shape), scale = next(_matrices(source, name)), scales[0]
        grid = (*shapes[scale], 1, 1)[:2]
        block = sizes
        if sizes is None or grid != tuple(map(blocks, shape, sizes)):
            if any(count not in (1, size) for count, size in zip(grid, shape, strict=True)):
                raise unsupported(
                    f"weight_block_size of {name} {shape} with scales {shapes[scale]}",
                    "the rows and columns that share a scale",
                    declared,
                )
            block = (shape[0] // grid[0], shape[1] // grid[1])
        yield name, Scaled(name, scale, shape, block or shape, EIGHT_BITS)


def _mxfp4(values: Values, source: TensorSource) -> Found:
    del values
    for name, shape in source.shapes().items():
        if name.endswith("_blocks"):
            stem = name.removesuffix("_blocks")
            experts, outputs, groups, half = shape
            yield stem, Mxfp4(stem, (experts, groups * half * 2, outputs))


def _bitsandbytes(values: Values, source: TensorSource) -> Found:
    del values
    for name, shape in source.shapes().items():
        stem, separator, kind = name.partition(".quant_state.bitsandbytes__")
        if separator:
            one_of("quant_type", kind, ("nf4", "fp4"))
            state = json.loads(bytes(source.read(name, 0, shape[0]).tolist()))
            rows, columns = state["shape"]
            yield (
                stem,
                Blockwise(
                    name=stem,
                    shape=(rows, columns),
                    size=state["blocksize"],
                    state=name,
                    storage=source.read(stem, 0, 1).dtype,
                    nested_size=state.get("nested_blocksize"),
                    nested_offset=state.get("nested_offset", 0.0),
                ),
            )
        elif name.endswith(".SCB"):
            yield _eight_bits(name.removesuffix("SCB"), source)


def _eight_bits(stem: str, source: TensorSource) -> tuple[str, Packing]:
    """A matrix of 8-bit integers of bitsandbytes, with the absolute maximum of each row."""
    order, name = f"{stem}weight_format", f"{stem}weight"
    unread = tuple(key for key in (order,) if key in source.shapes())
    for key in unread:
        one_of(key, int(source.read(key, 0, 1)), (ROW_MAJOR,))
    _, shape = next(_matrices(source, name))
    block, unit = (1, shape[1]), 1 / 127
    scaled = Scaled(name, f"{stem}SCB", shape, block, (torch.int8,), unit, unread=unread)
    return name, scaled


def _matrices(source: TensorSource, suffix: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Names and shapes of the tensors whose names have a suffix, which must be matrices."""
    for name, shape in source.shapes().items():
        if name.endswith(suffix):
            yield name, matrix(name, shape)


METHODS: Mapping[str, Callable[[Values, TensorSource], Found]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": compressed,
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
}
"""By `quant_method`."""
