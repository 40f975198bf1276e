"""Previews an export of a checkpoint, and its cost, without reading any weights."""

import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import msgspec
import torch
from torch import nn

from ortolan.export.advice import context_notes, risks, width_of
from ortolan.export.coverage import Row, read_coverage
from ortolan.export.errors import OptionError
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.calibration import SEQUENCE_LENGTH, own_calibration, own_name
from ortolan.export.options import Int4, Method, PrecisionName, Via
from ortolan.export.quantize.guide import is_affordable
from ortolan.export.quantize.schemes import scheme_of
from ortolan.export.settings import Quantization, resolve
from ortolan.export.sizes import pages
from ortolan.export.source import Source, open_exportable, unknown_keys_of, way_of
from ortolan.export.source.companions import COMPANIONS, TOKENIZER
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.runtime.chat.template_file import TEMPLATE, TOKENIZER_CONFIG

PROGRAM_BYTES = 550 << 20
"""Bytes of memory of an export without the model: PyTorch, ONNX, a trace."""

LAYERS_AT_ONCE: Mapping[Method | None, float] = {None: 1.5, "rtn": 1.5, "hqq": 1.5, "gptq": 4.0}
"""Float32 copies of the largest layer that are in memory at once, per method."""

START_S = 8.0
"""Seconds of an export without its weights: start, traces, first use of each kernel."""

WEIGHT_NS: Mapping[Method | None, float] = {None: 120.0, "rtn": 120.0, "hqq": 160.0, "gptq": 300.0}
"""Nanoseconds per weight on one core, with reference and verification; see `Cost.seconds`."""

CALIBRATE_NS, GUIDE_NS, WRITE_NS = 0.04, 0.12, 0.04
"""Nanoseconds per weight and token for what `gptq` needs: the inputs of every product, the
gradients that guide it, and a draft that writes the calibration text."""

REFERENCE_FLOPS = 95e9
"""Float32 operations per second of the core of these measurements, by `core_flops`."""

FLOAT_BYTES = 4
"""Bytes of a weight that is not rounded, on the CPU."""

LOSSES = {
    TOKENIZER: "the bundle takes token ids, not text",
    TEMPLATE: "the bundle has no chat template",
    "generation_config.json": "EOS tokens come from config.json",
}
"""Consequence of each missing file."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Estimated cost of an export to one precision.

    Attributes:
        bundle_bytes: size of the weights.
        method: of rounding; None for floats.
        memory_bytes: peak memory: the program, and copies of the largest layer.
        seconds: on one core, from measurements of models of up to 135M parameters scaled by the
            speed of this core; up to about four cores divide it. Includes synthetic calibration
            text and the gradients that guide `gptq`, where default options need them. A model that
            generates slowly takes longer.
    """

    bundle_bytes: int
    method: Method | None
    memory_bytes: int
    seconds: float


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint, and what an export of it would create.

    Attributes:
        way: see `ortolan.export.coverage.Row`.
        measured: test results of this model type, if any.
        kind: of bundle.
        layers: number of layers of each stack, by its name.
        width: of the vectors between layers.
        weight_bytes: size of the checkpoint's weight files.
        cache_bytes_per_token: size of the KV cache in fp32.
        precisions: cost of each precision.
        unknown_keys: config keys that make an export fail unless they are accepted by name.
        ignored_keys: config keys without an effect on the outputs.
        left_out: parts of the checkpoint for other inputs than text.
        missing: missing files, and the consequence of each.
        risks: why uncalibrated 4-bit weights would probably be too poor to keep.
        notes: warnings about the context length.
    """

    model_type: str
    way: Via
    measured: Row | None
    kind: str
    layers: dict[str, int]
    width: int | None
    vocab_size: int
    context_length: int
    parameters: int
    weight_bytes: int
    cache_bytes_per_token: int
    precisions: dict[str, Cost]
    unknown_keys: tuple[str, ...]
    ignored_keys: tuple[str, ...]
    left_out: tuple[str, ...]
    missing: dict[str, str]
    risks: tuple[str, ...]
    notes: tuple[str, ...] = ()


def preview(source: Source, *, via: Via | None = None) -> Preview:
    """Inspect a checkpoint without reading its weights.

    Raises:
        OptionError: the source is a live model.
        OrtolanError: an export would fail to open this source.
    """
    if isinstance(source, nn.Module):
        raise OptionError("A preview needs a checkpoint, not a live model. Export the model.")
    checkpoint = open_checkpoint(source)
    way = way_of(checkpoint, via)
    unknown = unknown_keys_of(checkpoint, via)
    model = open_exportable(
        checkpoint, tokenizer=None, max_context=None, accept_unknown=unknown, via=via
    )
    calibration = own_calibration(model)
    measured = [row for row in read_coverage().of(model.model_type) if row.way == way]
    return Preview(
        model_type=model.model_type,
        way=way,
        measured=measured[0] if measured else None,
        kind=model.kind,
        layers=_layers(model.module),
        width=width_of(model),
        vocab_size=model.vocab_size,
        context_length=model.context_length,
        parameters=_numbers(model.module),
        weight_bytes=sum(file.stat().st_size for file in checkpoint.tensors.files()),
        cache_bytes_per_token=sum(
            state.unit_bytes for state in model.states("float32") if state.update == "append"
        ),
        precisions=_costs(model),
        unknown_keys=unknown,
        ignored_keys=model.keys.ignored,
        left_out=model.left_out,
        missing=_missing(model, calibration),
        risks=risks(
            model,
            resolve(model.kind, precision=Int4(method="rtn"), takes_one=model.takes_one),
        ),
        notes=context_notes(model),
    )


def _layers(module: nn.Module) -> dict[str, int]:
    """Number of layers of each stack; nested lists are not counted."""
    lists = {n: len(m) for n, m in module.named_modules() if isinstance(m, nn.ModuleList)}
    return {n: size for n, size in lists.items() if not any(n.startswith(f"{o}.") for o in lists)}


def _missing(model: Exportable, calibration: Path | None) -> dict[str, str]:
    wanted = COMPANIONS if model.sides.has_decoder else COMPANIONS[:1]
    names = wanted if model.vocab_size > 1 else ()
    missing = {n: LOSSES[n] for n in names if n in LOSSES and n not in model.companions}
    if model.sides.has_encoder:  # nothing to chat with
        missing.pop(TEMPLATE, None)
    settings = model.companions.get(TOKENIZER_CONFIG)
    if settings is not None and b'"chat_template"' in settings.read_bytes():
        missing.pop(TEMPLATE, None)
    name = own_name(model)
    if name is not None and calibration is None:
        missing[name] = "4-bit weights are calibrated on text that the model writes"
    return missing


# --- cost -----------------------------------------------------------------------------------------


def _costs(model: Exportable) -> dict[str, Cost]:
    names: tuple[PrecisionName, ...] = ("fp32", "int8", "int4")
    writes = own_calibration(model) is None
    return {name: _cost(model, name, writes=writes) for name in names}


def _cost(model: Exportable, precision: PrecisionName, *, writes: bool) -> Cost:
    plan = resolve(model.kind, precision=precision, takes_one=model.takes_one)
    quantization = plan.quantization
    method = None if quantization is None else quantization.method
    layers = [
        layer
        for stack in model.module.modules()
        if isinstance(stack, nn.ModuleList)
        for layer in stack
    ]
    largest = max((_numbers(layer) for layer in layers), default=0)
    return Cost(
        bundle_bytes=_blob_bytes(model, quantization),
        method=method,
        memory_bytes=PROGRAM_BYTES + round(LAYERS_AT_ONCE[method] * FLOAT_BYTES * largest),
        seconds=round(
            REFERENCE_FLOPS
            / core_flops()
            * (START_S + 1e-9 * _weight_ns(model, quantization, writes) * _numbers(model.module)),
            1,
        ),
    )


@cache
def core_flops() -> float:
    """Float32 operations per second of one core, measured once in about 50 ms."""
    threads, size = torch.get_num_threads(), 512
    matrix = torch.ones(size, size)
    torch.set_num_threads(1)
    try:
        # CPU time of this thread: other programs on a busy machine do not count.
        seconds = []
        for _ in range(12):
            began = time.thread_time()
            torch.mm(matrix, matrix)
            seconds.append(time.thread_time() - began)
    finally:
        torch.set_num_threads(threads)
    return 2 * size**3 / max(min(seconds), 1e-9)


def _weight_ns(model: Exportable, quantization: Quantization | None, writes: bool) -> float:
    """Nanoseconds per weight on one core, with everything that grows with the weights."""
    if quantization is None or quantization.method != "gptq":
        return WEIGHT_NS[None if quantization is None else quantization.method]
    tokens = quantization.calibration_sequences * min(SEQUENCE_LENGTH, model.context_length)
    products = [
        n for n, owner, weight in _weights(model.module) if _is_matrix(model, owner, weight)
    ]
    guides = is_affordable(model, tokens, products)
    writes = writes and model.sides.has_decoder
    of_token = CALIBRATE_NS + GUIDE_NS * guides + WRITE_NS * writes
    return WEIGHT_NS[quantization.method] + of_token * tokens


def _numbers(module: nn.Module) -> int:
    return sum(weight.numel() for _, _, weight in _weights(module))


def _blob_bytes(model: Exportable, quantization: Quantization | None) -> int:
    """Size of the weight file, with products and token tables in low-bit form if planned."""
    sizes = [FLOAT_BYTES * table.numel() for table in model.tables.values()]
    for name, owner, weight in _weights(model.module):
        if quantization is None or not _is_matrix(model, owner, weight):
            sizes.append(FLOAT_BYTES * weight.numel())
            continue
        scheme = scheme_of(name, weight.shape[-1], quantization, model.weights)
        groups = scheme.groups(weight.shape[-1]) * weight.numel() // weight.shape[-1]
        sizes += [groups * scheme.group * scheme.bits // 8, groups * FLOAT_BYTES]
        sizes += [] if scheme.symmetric else [groups * scheme.bits // 8]
    return sum(map(pages, sizes))


def _weights(module: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Parameter]]:
    """Each weight once, with its name and the module that owns it."""
    seen: set[int] = set()
    # On `meta`, weights that transformers ties are separate parameters.
    copies = getattr(module, "all_tied_weights_keys", {})
    for prefix, owner in module.named_modules():
        for name, weight in owner.named_parameters(prefix, recurse=False):
            if id(weight) not in seen and name not in copies:
                seen.add(id(weight))
                yield name, owner, weight


def _is_matrix(model: Exportable, owner: nn.Module, weight: nn.Parameter) -> bool:
    """Whether a weight is rounded: products, experts and token tables are."""
    if isinstance(owner, nn.Embedding):
        return len(weight) in (model.vocab_size, model.source_vocab_size)
    return weight.dim() == 2 or (weight.dim() == 3 and len(weight) > 1)
