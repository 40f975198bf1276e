"""Previews an export of a checkpoint, and its cost, without reading any weights."""

from pathlib import Path

import msgspec
from torch import nn

from ortolan.export.advice import risks, width_of
from ortolan.export.coverage import Row, read_coverage
from ortolan.export.errors import OptionError
from ortolan.export.exportable import Exportable, content_of
from ortolan.export.inputs.calibration import own_calibration, own_name
from ortolan.export.options import ExportOptions, Int4, PrecisionName, Via
from ortolan.export.parameters import count
from ortolan.export.preview.cost import Cost, costs
from ortolan.export.progress import Progress
from ortolan.export.quantize.stored import default_precision
from ortolan.export.settings import resolve
from ortolan.export.source import AnySource, open_exportable, unknown_keys_of, way_of
from ortolan.export.source.companions import COMPANIONS, TOKENIZER
from ortolan.export.source.ctc_symbols import VOCABULARY
from ortolan.export.source.names import located
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.runtime.bundle.sound_sources import WaveSource
from ortolan.runtime.chat.template_file import TEMPLATE, TOKENIZER_CONFIG

LOSSES = {
    TOKENIZER: "the bundle takes token ids, not text",
    TEMPLATE: "the bundle has no chat template",
    "generation_config.json": "EOS tokens come from config.json",
}
"""Consequence of each missing file."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """An encoder or a head that becomes a bundle in the bundle; see `Preview`."""

    layers: dict[str, int]
    width: int | None
    parameters: int


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint, and what an export of it would create.

    Attributes:
        way: see `ortolan.export.coverage.Row`.
        measured: test results of this model type, if any.
        layers: number of layers of each stack, by its name.
        width: of the vectors between layers.
        parts: encoders of images, sounds or texts, by the folder of the bundle that they become.
        weight_bytes: size of the checkpoint's weight files.
        cache_bytes_per_token: size of the KV cache in fp32.
        default: the precision of an export unless one is chosen.
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
    parts: dict[str, Part]
    weight_bytes: int
    cache_bytes_per_token: int
    precisions: dict[str, Cost]
    default: PrecisionName
    unknown_keys: tuple[str, ...]
    ignored_keys: tuple[str, ...]
    left_out: tuple[str, ...]
    missing: dict[str, str]
    risks: tuple[str, ...]
    notes: tuple[str, ...] = ()


def preview(
    source: AnySource,
    *,
    revision: str | None = None,
    via: Via | None = None,
    progress: Progress | None = None,
) -> Preview:
    """Inspect a checkpoint without reading its weights; see `ortolan.export` for the arguments."""
    if isinstance(source, nn.Module):
        raise OptionError("A preview needs a checkpoint, not a live model. Export the model.")
    checkpoint = open_checkpoint(located(source, revision=revision, via=via, progress=progress))
    way = way_of(checkpoint, via)
    unknown = unknown_keys_of(checkpoint, via)
    model = open_exportable(checkpoint, ExportOptions(accept_unknown=unknown, via=via))
    calibration = own_calibration(model)
    measured = [row for row in read_coverage().of(model.origin.model_type) if row.way == way]
    return Preview(
        model_type=model.origin.model_type,
        way=way,
        measured=measured[0] if measured else None,
        kind=model.kind,
        layers=_layers(model.module),
        width=width_of(model),
        vocab_size=model.vocab_size,
        context_length=model.context_length,
        parameters=count(model.module),
        parts={name: _part(part) for name, part in model.parts.items()},
        weight_bytes=sum(file.stat().st_size for file in checkpoint.opened.files),
        cache_bytes_per_token=sum(
            state.unit_bytes for state in model.states("float32") if state.update == "append"
        ),
        precisions=costs(model),
        default=default_precision(model),
        unknown_keys=unknown,
        ignored_keys=model.origin.keys.ignored,
        left_out=model.origin.left_out,
        missing=_missing(model, calibration),
        risks=risks(
            model,
            resolve(model.kind, precision=Int4(method="rtn"), takes_one=model.takes_one),
        ),
        notes=model.notes,
    )


def _part(model: Exportable) -> Part:
    return Part(layers=_layers(model.module), width=width_of(model), parameters=count(model.module))


def _layers(module: nn.Module) -> dict[str, int]:
    """Number of layers of each stack; nested lists are not counted."""
    lists = {n: len(m) for n, m in module.named_modules() if isinstance(m, nn.ModuleList)}
    return {n: size for n, size in lists.items() if not any(n.startswith(f"{o}.") for o in lists)}


def _missing(model: Exportable, calibration: Path | None) -> dict[str, str]:
    if isinstance(model.source, WaveSource) and not model.sides.has_decoder:
        is_named = model.output is None or model.output.kind != "ctc" or model.output.labels
        return {} if is_named else {VOCABULARY: "the bundle gives logits, not text"}
    wanted = COMPANIONS if model.sides.has_decoder else COMPANIONS[:1]
    names = wanted if model.vocab_size > 1 else ()
    missing = {n: LOSSES[n] for n in names if n in LOSSES and n not in model.companions}
    if model.sides.has_encoder:  # nothing to chat with
        missing.pop(TEMPLATE, None)
    settings = model.companions.get(TOKENIZER_CONFIG)
    if settings is not None and b'"chat_template"' in content_of(settings):
        missing.pop(TEMPLATE, None)
    name = own_name(model)
    if name is not None and calibration is None:
        missing[name] = "4-bit weights are calibrated on text that the model writes"
    return missing
