"""Quantization methods: which stored tensors make up which published ones.

Sources: the formats written by AutoGPTQ, AutoAWQ, compressed-tensors, bitsandbytes and transformers
(`quantization_config` in config.json).
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping

import torch

from ortolan.modeling.checkpoint.packed.compressed import compressed
from ortolan.modeling.checkpoint.packed.floats import EIGHT_BITS, Blockwise, Mxfp4, Scaled
from ortolan.modeling.checkpoint.packed.integers import AWQ_ORDER, WORD_BITS, Columns
from ortolan.modeling.checkpoint.packed.layout import (
    Packing,
    Stored,
    Values,
    block_size,
    blocks,
    matrix,
    one_of,
    optional_bool,
    unsupported,
)
from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.lazy_tensor import whole_of

Found = Iterator[tuple[str, Packing]]

OUTPUTS_FIRST = ("gptq", "awq", "bitsandbytes")
"""Methods that quantize a layer with its outputs first, even if it is published transposed."""

AWQ = ("gemm",)
"""Orders of AWQ's codes."""

DEFAULT_BLOCK = (128, 128)
"""Rows and columns that share a scale if an FP8 config does not say."""

ROW_MAJOR = 0
"""Format of 8-bit weights of bitsandbytes that are stored row by row."""


def packings(values: Values, stored: Stored) -> dict[str, Packing]:
    """Packed tensors of a checkpoint, by their published names."""
    method = values.get("quant_method")
    read = METHODS.get(method) if isinstance(method, str) else None
    if read is None:
        raise unsupported("quant_method", ", ".join(METHODS), method)
    try:
        return dict(read(values, stored))
    except re.error as error:
        raise unsupported("patterns", "regular expressions", error.pattern) from error
    except (KeyError, ValueError, TypeError, IndexError, ZeroDivisionError) as error:
        raise CheckpointError(
            f"quantization_config: tensors of the method {method} are missing or malformed: "
            f"{str(error).strip()!r:.120}. The download is incomplete."
        ) from error


def _gptq(values: Values, stored: Stored) -> Found:
    version = str(values.get("checkpoint_format") or values.get("format") or "gptq").lower()
    one_of("checkpoint_format", version, ("gptq", "gptq_v2"))
    if values.get("adapter"):
        raise unsupported("adapter", "absent", values["adapter"])
    for name, (rows, outputs) in _matrices(stored, ".qweight"):
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
                index=index if index in stored or ordered else None,
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


def _awq(values: Values, stored: Stored) -> Found:
    bits = one_of("bits", values.get("bits", values.get("w_bit")), (4,))
    one_of("version", str(values.get("version") or values.get("format") or "gemm").lower(), AWQ)
    one_of("backend", "llm-awq" if values.get("backend") == "llm-awq" else None, (None,))
    has_zeros = optional_bool("zero_point", values.get("zero_point"))
    for name, (inputs, columns) in _matrices(stored, ".qweight"):
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


def _fp8(values: Values, stored: Stored) -> Found:
    """A scale per block of the declared size, per row or per tensor."""
    declared = values.get("weight_block_size", DEFAULT_BLOCK)
    sizes = None if declared is None else block_size("weight_block_size", declared)
    for name in stored:
        scales = [key for key in (f"{name}_scale_inv", f"{name}_scale") if key in stored]
        if not scales:
            continue
        (_, shape), scale = next(_matrices(stored, name)), scales[0]
        given = tuple(stored[scale].shape)
        grid = (*given, 1, 1)[:2]
        block = sizes
        if sizes is None or grid != tuple(map(blocks, shape, sizes)):
            if any(count not in (1, size) for count, size in zip(grid, shape, strict=True)):
                raise unsupported(
                    f"weight_block_size of {name} {shape} with scales {given}",
                    "the rows and columns that share a scale",
                    declared,
                )
            block = (shape[0] // grid[0], shape[1] // grid[1])
        yield name, Scaled(name, scale, shape, block or shape, EIGHT_BITS)


def _mxfp4(values: Values, stored: Stored) -> Found:
    del values
    for name, tensor in stored.items():
        if name.endswith("_blocks"):
            stem = name.removesuffix("_blocks")
            experts, outputs, groups, half = tensor.shape
            yield stem, Mxfp4(stem, (experts, outputs, groups * half * 2))


def _bitsandbytes(values: Values, stored: Stored) -> Found:
    del values
    for name, tensor in stored.items():
        stem, separator, kind = name.partition(".quant_state.bitsandbytes__")
        if separator:
            one_of("quant_type", kind, ("nf4", "fp4"))
            state = json.loads(bytes(whole_of(tensor).tolist()))
            rows, columns = state["shape"]
            yield (
                stem,
                Blockwise(
                    name=stem,
                    shape=(rows, columns),
                    size=state["blocksize"],
                    state=name,
                    storage=stored[stem].dtype,
                    nested_size=state.get("nested_blocksize"),
                    nested_offset=state.get("nested_offset", 0.0),
                ),
            )
        elif name.endswith(".SCB"):
            yield _eight_bits(name.removesuffix("SCB"), stored)


def _eight_bits(stem: str, stored: Stored) -> tuple[str, Packing]:
    """A matrix of 8-bit integers of bitsandbytes, with the absolute maximum of each row."""
    order, name = f"{stem}weight_format", f"{stem}weight"
    unread = tuple(key for key in (order,) if key in stored)
    for key in unread:
        one_of(key, int(stored[key].read(0, 1)), (ROW_MAJOR,))
    _, shape = next(_matrices(stored, name))
    block, unit = (1, shape[1]), 1 / 127
    scaled = Scaled(name, f"{stem}SCB", shape, block, (torch.int8,), unit, unread=unread)
    return name, scaled


def _matrices(stored: Stored, suffix: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Names and shapes of the tensors whose names have a suffix, which must be matrices."""
    for name, tensor in stored.items():
        if name.endswith(suffix):
            yield name, matrix(name, tensor.shape)


METHODS: Mapping[str, Callable[[Values, Stored], Found]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": compressed,
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
}
"""By `quant_method`."""
