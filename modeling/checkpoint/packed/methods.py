"""Quantization methods: which stored tensors make up which published ones.

Sources: the formats written by AutoGPTQ, AutoAWQ, compressed-tensors, bitsandbytes and transformers
(`quantization_config` in config.json).
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

from ortolan.modeling.checkpoint.packed.floats import Blockwise, Mxfp4, Scaled
from ortolan.modeling.checkpoint.packed.integers import AWQ_ORDER, WORD_BITS, Columns, Rows
from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.weights import CodedRows, CodeFormat, Shapes, TensorSource

Values = Mapping[str, object]


class Packing(Protocol):
    """Decodes a published tensor from stored ones."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the published tensor."""
        ...

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of its stored tensors."""
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

WEIGHT = ".weight"

IDLE = ("input_scale", "activation_scale", "input_zero_point", "output_scale")
"""Tensors that describe the quantization of inputs, which stay floats here."""


def packings(values: Values, source: TensorSource) -> dict[str, Packing]:
    """Packed tensors of a checkpoint, by their published names.

    Args:
        values: `quantization_config` of its config.
        source: stored tensors.

    Raises:
        CheckpointError: Ortolan does not read the method, or the tensors do not match it.
    """
    method = values.get("quant_method")
    read = METHODS.get(method) if isinstance(method, str) else None
    if read is None:
        raise _unknown("quant_method", ", ".join(METHODS), method)
    try:
        return dict(read(values, source))
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise CheckpointError(
            f"quantization_config: tensors of the method {method} are missing or malformed: "
            f"{str(error).strip()!r:.120}. The download is incomplete."
        ) from error


def _gptq(values: Values, source: TensorSource) -> Found:
    bits = _one_of("bits", values.get("bits"), (2, 4, 8))
    version = str(values.get("checkpoint_format") or "gptq")
    less_one = {"gptq": True, "gptq_v2": False}
    if version not in less_one:
        raise _unknown("checkpoint_format", "gptq or gptq_v2", version)
    for name, shape in source.shapes().items():
        if name.endswith(".qweight"):
            stem = name.removesuffix("qweight")
            groups, outputs = source.shapes()[f"{stem}scales"]
            yield (
                f"{stem}weight",
                Columns(
                    stem=stem,
                    shape=(outputs, shape[0] * WORD_BITS // bits),
                    bits=bits,
                    groups=groups,
                    index=f"{stem}g_idx" if f"{stem}g_idx" in source.shapes() else None,
                    columns=None,
                    less_one=less_one[version],
                ),
            )


def _awq(values: Values, source: TensorSource) -> Found:
    bits = _one_of("bits", values.get("bits", values.get("w_bit")), (4,))
    version = str(values.get("version", "gemm")).lower()
    if version != "gemm":
        raise _unknown("version", "gemm", version)
    for name, shape in source.shapes().items():
        if name.endswith(".qweight"):
            stem = name.removesuffix("qweight")
            yield (
                f"{stem}weight",
                Columns(
                    stem=stem,
                    shape=(shape[1] * WORD_BITS // bits, shape[0]),
                    bits=bits,
                    groups=source.shapes()[f"{stem}scales"][0],
                    index=None,
                    columns=AWQ_ORDER,
                    less_one=False,
                ),
            )


def _compressed(values: Values, source: TensorSource) -> Found:
    """Integers packed by the bits of the config's groups; 8-bit floats and integers."""
    shapes = source.shapes()
    groups = values.get("config_groups")
    schemes = [
        group.get("weights") for group in (groups.values() if isinstance(groups, dict) else ())
    ]
    widths = {scheme.get("num_bits") for scheme in schemes if isinstance(scheme, dict)}
    if any(name.endswith(".weight_packed") for name in shapes) and len(widths) != 1:
        raise _unknown("config_groups", "groups of one width", sorted(map(str, widths)))
    for name, shape in shapes.items():
        if name.endswith(".weight_packed"):
            stem = name.removesuffix("_packed")
            bits = _one_of("num_bits", next(iter(widths)), (2, 4, 8))
            inputs = int(source.read(f"{stem}_shape", 0, 2)[1])
            yield (
                stem,
                Rows(
                    stem=stem,
                    shape=(shape[0], inputs),
                    bits=bits,
                    groups=shapes[f"{stem}_scale"][1],
                    index=f"{stem}_g_idx" if f"{stem}_g_idx" in shapes else None,
                    symmetric=f"{stem}_zero_point" not in shapes,
                    unused=(f"{stem}_shape", *_idle(stem, shapes)),
                ),
            )
        elif name.endswith(WEIGHT) and f"{name}_scale" in shapes:
            if f"{name}_zero_point" in shapes and source.read(f"{name}_zero_point", 0, 1).any():
                raise _unknown(f"{name}_zero_point", "zeros", "others")
            _check_dtype(name, source, (torch.int8, torch.float8_e4m3fn))
            unused = [zero for zero in (f"{name}_zero_point",) if zero in shapes]
            yield name, _scaled(name, f"{name}_scale", shapes, (*unused, *_idle(name, shapes)))


def _fp8(values: Values, source: TensorSource) -> Found:
    del values
    shapes = source.shapes()
    for name in shapes:
        for scale in (f"{name}_scale_inv", f"{name}_scale"):
            if scale in shapes:
                _check_dtype(name, source, (torch.float8_e4m3fn, torch.float8_e5m2))
                yield name, _scaled(name, scale, shapes, _idle(name, shapes))


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
            _one_of("quant_type", kind, ("nf4", "fp4"))
            state = json.loads(bytes(source.read(name, 0, shape[0]).tolist()))
            rows, columns = state["shape"]
            yield (
                stem,
                Blockwise(
                    name=stem,
                    shape=(rows, columns),
                    size=state["blocksize"],
                    state=name,
                    nested_size=state.get("nested_blocksize"),
                    nested_offset=state.get("nested_offset", 0.0),
                ),
            )


METHODS: Mapping[str, Callable[[Values, TensorSource], Found]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed,
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
}
"""By `quant_method`."""


def _check_dtype(name: str, source: TensorSource, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raise CheckpointError unless a tensor has one of the dtypes."""
    dtype = source.read(name, 0, 1).dtype
    if dtype not in dtypes:
        raise _unknown(name, f"of type {' or '.join(map(str, dtypes))}", dtype)


def _scaled(name: str, scale: str, shapes: Shapes, unused: tuple[str, ...]) -> Scaled:
    """A matrix and its scales; their shapes determine the block size."""
    shape, count = shapes[name], shapes[scale]
    if len(shape) != 2:
        raise _unknown(name, "a matrix", f"shape {shape}")
    rows, columns = shape
    high, wide = (*count, 1, 1)[:2]
    block = (_share(rows, high), _share(columns, wide))
    return Scaled(name, scale, (rows, columns), block, unused)


def _share(size: int, count: int) -> int:
    """Rows or columns per block if there are `count` blocks: a power of 2, or all."""
    if count == 1:
        return size
    share = -(-size // count)
    return share if share == 1 else 1 << (share - 1).bit_length()


def _idle(name: str, shapes: Shapes) -> tuple[str, ...]:
    layer = name.removesuffix(WEIGHT)
    return tuple(f"{layer}.{kind}" for kind in IDLE if f"{layer}.{kind}" in shapes)


def _one_of(key: str, value: object, choices: tuple[object, ...]) -> int:
    if value not in choices:
        raise _unknown(key, f"one of {', '.join(map(str, choices))}", value)
    return value if isinstance(value, int) else 0


def _unknown(key: str, expected: str, value: object) -> CheckpointError:
    return CheckpointError(
        f"quantization_config: {key} must be {expected} (got {value!r:.80}). Export the checkpoint "
        "that this one was quantized from."
    )
