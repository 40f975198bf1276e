"""Estimates the sizes of an export: its memory, its bundle, and the memory of that."""

from collections.abc import Mapping
from math import prod

import msgspec
from torch import nn

from ortolan.export.exportable import Exportable
from ortolan.export.low_bit import Quantization
from ortolan.export.options import Method, PrecisionName
from ortolan.export.parameters import count, is_matrix, weights_of
from ortolan.export.quantize.schemes import scheme_of
from ortolan.export.settings import resolve
from ortolan.export.sizes import pages

PROGRAM_BYTES = 550 << 20
"""Bytes of memory of an export without the model: PyTorch, ONNX, a trace."""

LAYERS_AT_ONCE: Mapping[Method | None, float] = {None: 1.5, "rtn": 1.5, "gptq": 4.0}
"""Float32 copies of the largest layer that are in memory at once, per method."""

FLOAT_BYTES = 4
"""Bytes of a weight that is not rounded, on the CPU."""

PROMPT_TOKENS = 512
"""Tokens in the states whose memory counts."""

GENERATING_BYTES = 110 << 20
"""Bytes of memory of a generating process without the model."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Estimated cost of an export to one precision.

    Attributes:
        bundle_bytes: size of the weights, with those of encoders in the bundle.
        method: of rounding; None for floats.
        memory_bytes: peak memory: the program, and copies of the largest layer.
        run_memory_bytes: memory of a process that generates on the CPU after `PROMPT_TOKENS`
            tokens; None for other kinds than decoders.
    """

    bundle_bytes: int
    method: Method | None
    memory_bytes: int
    run_memory_bytes: int | None


def costs(model: Exportable) -> dict[str, Cost]:
    """The cost of each precision with default options."""
    names: tuple[PrecisionName, ...] = ("fp32", "int8", "int4")
    return {name: _cost(model, name) for name in names}


def _cost(model: Exportable, precision: PrecisionName) -> Cost:
    plan = resolve(model.kind, precision=precision, takes_one=model.takes_one)
    quantization = plan.quantization
    method = None if quantization is None else quantization.method
    layers = [
        layer
        for stack in model.module.modules()
        if isinstance(stack, nn.ModuleList)
        for layer in stack
    ]
    largest = max((count(layer) for layer in layers), default=0)
    part_bytes = 0
    for part in model.parts.values():
        of_part = resolve(part.kind, precision="fp32" if quantization is None else "int8")
        part_bytes += _blob_bytes(part, of_part.quantization)
    return Cost(
        bundle_bytes=_blob_bytes(model, quantization) + part_bytes,
        method=method,
        memory_bytes=PROGRAM_BYTES + round(LAYERS_AT_ONCE[method] * FLOAT_BYTES * largest),
        run_memory_bytes=_run_memory(model, quantization, part_bytes),
    )


def _run_memory(
    model: Exportable, quantization: Quantization | None, part_bytes: int
) -> int | None:
    """Bytes of a generating process: packed weights, whose scales stay mapped besides, states."""
    if model.kind != "decoder":
        return None
    blocks, head = 0, 0
    for name, owner, weight in weights_of(model.module):
        if not is_matrix(model, owner, weight):
            continue
        if quantization is None:
            packed = FLOAT_BYTES * weight.numel()
        else:
            *experts, rows, columns = weight.shape
            scheme = scheme_of(name, columns, quantization, model.weights)
            codes, scales, *others = scheme.sizes(rows, columns)
            packed = prod(experts) * (codes + 2 * scales + sum(others))
        if len(weight) == model.vocab_size:  # the last one is the head, tied or not
            head = packed
        elif not isinstance(owner, nn.Embedding):
            blocks += packed
    states = sum(
        state.unit_bytes * (PROMPT_TOKENS if state.update == "append" else 1)
        for state in model.states("float32")
    )
    return GENERATING_BYTES + blocks + head + states + part_bytes


def _blob_bytes(model: Exportable, quantization: Quantization | None) -> int:
    """Size of the weight file, with products and token tables in low-bit form if planned."""
    sizes = [FLOAT_BYTES * table.numel() for table in model.tables.values()]
    for name, owner, weight in weights_of(model.module):
        if quantization is None or not is_matrix(model, owner, weight):
            sizes.append(FLOAT_BYTES * weight.numel())
            continue
        scheme = scheme_of(name, weight.shape[-1], quantization, model.weights)
        groups = scheme.groups(weight.shape[-1]) * weight.numel() // weight.shape[-1]
        sizes += [groups * scheme.group * scheme.bits // 8, groups * FLOAT_BYTES]
        sizes += [] if scheme.symmetric else [groups * scheme.bits // 8]
    return sum(map(pages, sizes))
