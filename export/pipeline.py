"""From a trained model to a bundle: the steps, in order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortolan import files
from ortolan.export.derived import DerivedWeights, recipes_of
from ortolan.export.errors import ParityError
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.calibration import (
    Calibration,
    cut_inputs,
    own_calibration,
    read_calibration,
)
from ortolan.export.inputs.tensors import Inputs
from ortolan.export.inputs.writer import write
from ortolan.export.inputs.written import own_inputs
from ortolan.export.lengths import context_notes
from ortolan.export.manifest import describe
from ortolan.export.options import DEFAULTS, Device, ExportOptions
from ortolan.export.output import staged_bundle, write_manifest
from ortolan.export.passes import tidy
from ortolan.export.passes.lower import lower
from ortolan.export.passes.portable_bodies import attach_bodies
from ortolan.export.precision import CALIBRATION_SEQUENCES, Precision
from ortolan.export.proof.certificate import certify, describe_failure, passed, thresholds
from ortolan.export.proof.placement import check_placement
from ortolan.export.proof.probes import inputs_of, make_probes, text_of
from ortolan.export.proof.quality import advise, risks
from ortolan.export.proof.replay import replay
from ortolan.export.quantize.auto import Chosen, choose
from ortolan.export.quantize.find import find_codes
from ortolan.export.quantize.kept import kept
from ortolan.export.quantize.plan import Quantization, plan
from ortolan.export.settings import Settings, draft_of, resolve
from ortolan.export.source import Source, open_exportable
from ortolan.export.weights.blob import bind, page_bytes, pages
from ortolan.export.weights.int8_cache import with_int8_cache
from ortolan.export.weights.store import Stored, store
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.quality import Quality
from ortolan.runtime.machine.memory import return_large_memory
from ortolan.runtime.verification.certificate import Certificate
from ortolan.runtime.verification.certificate_files import JSON_NAME, write_certificate

Progress = Callable[[str, int, int], None]
"""Called with the step's name, what is done of it, and all of it."""


def export(
    source: Source,
    out: str | Path,
    *,
    precision: Precision = "fp32",
    device: Device = "cpu",
    calibration: str | Path | None = None,
    max_context: int | None = None,
    options: ExportOptions = DEFAULTS,
    force: bool = False,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> Bundle:
    """Export a model and prove that the bundle computes what PyTorch computes.

    Args:
        source: a checkpoint (see `open_checkpoint`), or a live model: of `ortolan.modeling`, of
            transformers, or a module of your own.
        out: the folder of the bundle.
        precision: of the weights: a name, or an `Int8`, `Int4` or `Auto`; `settings.DTYPES` has the
            type of the cache and the activations.
        device: to run on.
        calibration: a file to calibrate and judge by. By default that of `own_calibration`, or what
            the model writes itself (`inputs.written`).
        max_context: tokens that have to fit; by default the model's own, or those of texts that all
            have the same rotary frequencies.
        options: the rest.
        force: replace a bundle at `out`.
        progress: told of every step.
        warn: called before any work with what the bundle will not do as the trained model does, and
            with each reason why it will probably be poor.

    Raises:
        OrtolanError: see `export.errors`, and for the source `modeling.errors`.
    """
    return_large_memory()
    model = open_exportable(
        source,
        tokenizer=options.tokenizer,
        max_context=max_context,
        accept_unknown=options.accept_unknown,
        adapter=options.adapter,
        via=options.via,
    )
    file = own_calibration(model) if calibration is None else Path(calibration)
    settings = resolve(
        model.kind,
        precision=precision,
        device=device,
        options=options,
        takes_one=model.takes_one,
    )
    if warn is not None:
        _warn(warn, model, settings)
    model.check()
    data = _calibration(model, settings, file, is_given=calibration is not None)
    inputs = _inputs(model, settings, data)
    with staged_bundle(Path(out).absolute(), force=force) as folder:
        _build(folder, model, settings, data, inputs, progress or _silent)
    return open_bundle(out, trust=True)


def _silent(step: str, done: int, total: int) -> None:
    """Report nothing."""


def _warn(warn: Callable[[str], None], model: Exportable, settings: Settings) -> None:
    """Say what is known of the bundle before any work."""
    poor = () if settings.options.allow_poor else risks(model, settings)
    for note in (*context_notes(model), *poor):
        warn(note)


def _calibration(
    model: Exportable, settings: Settings, file: Path | None, *, is_given: bool
) -> Calibration | None:
    """The given file, or the one beside the checkpoint where weights are quantized."""
    if file is None or not (is_given or settings.rounds):
        return None
    # The first part of a checkpoint's own file may be what the model was trained on.
    is_learned_from = settings.calibrates or settings.options.cache == "int8" or not is_given
    return read_calibration(file, model, is_learned_from=is_learned_from)


def _inputs(model: Exportable, settings: Settings, data: Calibration | None) -> Inputs | None:
    """What weights and cache are calibrated on, if they are; None where it is yet to be written."""
    if not settings.calibrates or settings.quantization is None:
        if data is None or settings.options.cache == "float":
            return Inputs()
        return cut_inputs(data, model, count=CALIBRATION_SEQUENCES)
    if data is None:
        return None
    return cut_inputs(data, model, count=settings.quantization.calibration_sequences)


def _build(
    folder: Path,
    model: Exportable,
    settings: Settings,
    data: Calibration | None,
    inputs: Inputs | None,
    progress: Progress,
) -> None:
    """Write a whole bundle into a folder, and prove it there if the CPU can compute it."""
    certificate = _reference(model, settings, data, progress)
    traced = _trace(model, settings, progress)
    model = replace(model, weights=DerivedWeights(model.weights, recipes_of(traced.values())))
    if inputs is None:
        inputs = _own_inputs(folder, model, settings, traced, progress)
    if settings.options.cache == "int8":
        model = with_int8_cache(model, traced, inputs)
    with files.temporary_folder(folder / "choice") as temporary:
        chosen = _choose(temporary, model, settings, traced, data, inputs, progress)
        if chosen is not None:
            settings = replace(settings, precision=chosen.precision)
        stored = _write_files(folder, model, settings, traced, inputs, progress, chosen)
    certificate = replace(certificate, weights=stored.expected)
    _write_certified(folder, model, settings, stored, certificate)
    if settings.unverified is not None:
        return  # the manifest says so, and the certificate holds the reference
    progress("verify", 0, 1)
    measured = replay(folder)
    advice, quality = advise(model, settings), measured.quality
    if measured.verdict == "FAIL":
        raise ParityError(describe_failure(measured, certificate, advice))
    if quality.word != "excellent":
        quality = msgspec.structs.replace(quality, advice=advice)
    _write_certified(folder, model, settings, stored, passed(certificate, measured), quality)
    progress("verify", 1, 1)


def _own_inputs(
    folder: Path,
    model: Exportable,
    settings: Settings,
    traced: Mapping[str, ir.Model],
    progress: Progress,
) -> Inputs:
    """What the model writes itself, by a draft of the bundle that is gone afterwards."""
    quantization = settings.quantization
    if quantization is None:
        return Inputs()
    if settings.auto is None and not _is_fitted(model, quantization, traced):
        return Inputs()
    with files.temporary_folder(folder / "draft") as temporary:

        def let_write(
            given: Sequence[NDArray[Any]], *, tokens: int, length: int
        ) -> list[NDArray[np.int64]]:
            progress("write text", 0, 1)
            bundle = temporary / "bundle"
            files.make_folder(bundle)
            _write_draft(bundle, model, settings, traced)
            told = partial(progress, "write text")
            return write(bundle, given, tokens=tokens, length=length, told=told)

        return own_inputs(model, let_write, count=quantization.calibration_sequences)


def _is_fitted(
    model: Exportable, quantization: Quantization, traced: Mapping[str, ir.Model]
) -> bool:
    """Whether any weight of a plan is fitted to inputs: none where all are kept, or experts."""
    planned = plan(traced.values(), quantization, model.weights)
    stored = {} if quantization.keeps == "none" else kept(model.weights, planned)
    return any(len(model.weights.shape(name)) == 2 for name in planned.keys() - stored.keys())


def _write_draft(
    folder: Path, model: Exportable, settings: Settings, traced: Mapping[str, ir.Model]
) -> None:
    """A bundle of the same model to write with, in 8 bits on the CPU: quick, and not proven."""
    draft = draft_of(settings)
    if draft.dtype == settings.dtype:
        graphs = {role: traced[role].clone() for role in draft.graph_files}
    else:
        graphs = _trace(model, draft, _silent)
    # No text is encoded with it, and nobody asks where it comes from.
    model = replace(model, companions={}, sha256=lambda: "0" * 64)
    stored = _write_files(folder, model, draft, graphs, Inputs(), _silent)
    files.write(folder / JSON_NAME, b"")
    write_manifest(folder, describe(folder, model, draft, stored))


def _reference(
    model: Exportable, settings: Settings, data: Calibration | None, progress: Progress
) -> Certificate:
    """What PyTorch computes, and the bounds that the bundle has to keep to."""
    options = settings.options
    return certify(
        model,
        make_probes(model, data, proof=options.proof),
        thresholds=thresholds(
            settings.precision,
            output=model.output,
            max_kl=options.max_kl,
            allow_poor=options.allow_poor,
            cache=options.cache,
        ),
        text=text_of(model, data),
        progress=partial(progress, "reference"),
    )


def _trace(model: Exportable, settings: Settings, progress: Progress) -> dict[str, ir.Model]:
    """Each graph by its role, tidied."""
    graphs, traced = settings.graph_files, {}
    for number, (role, graph) in enumerate(graphs.items()):
        progress("trace", number, len(graphs))
        traced[role] = tidy(model.trace(role, graph, settings.dtype))
    progress("trace", len(graphs), len(graphs))
    return traced


def _choose(
    folder: Path,
    model: Exportable,
    settings: Settings,
    traced: Mapping[str, ir.Model],
    data: Calibration | None,
    inputs: Inputs,
    progress: Progress,
) -> Chosen | None:
    """Bits for every weight, where they are chosen; files for that lie in a folder of their own."""
    if settings.auto is None or settings.quantization is None:
        return None
    models = list(traced.values())
    return choose(
        models,
        model,
        settings.quantization,
        settings.auto,
        inputs,
        inputs_of(model, make_probes(model, data, proof=settings.options.proof)),
        folder,
        other_bytes=lambda names: page_bytes(models, without=names),
        pages=pages,
        progress=progress,
    )


def _write_files(
    folder: Path,
    model: Exportable,
    settings: Settings,
    traced: Mapping[str, ir.Model],
    inputs: Inputs,
    progress: Progress,
    chosen: Chosen | None = None,
) -> Stored:
    """Write graphs, weights and companions: everything but certificate and manifest."""
    plan_of = settings.quantization
    if chosen is not None:
        lowered = lower(traced, settings, chosen.schemes)
        codes = chosen.weights(lowered.schemes)
    elif plan_of is not None:
        lowered = lower(traced, settings, plan(traced.values(), plan_of, model.weights))
        codes = find_codes(model, plan_of, lowered.schemes, inputs, progress)
    else:
        lowered, codes = lower(traced, settings, {}), iter(())
    check_placement(lowered.graphs, settings)
    stored = store(lowered, model, settings, codes, folder, progress, origin=inputs.origin)
    for role, graph in lowered.graphs.items():
        bind(graph, stored.blob)
        proto = ir.to_proto(graph)
        if settings.options.attention == "portable":
            attach_bodies(proto)
        file = folder / settings.graph_files[role].file
        files.write(file, proto.SerializeToString(deterministic=True))
    for name, path in model.companions.items():
        files.copy(path, folder / name)
    return stored


def _write_certified(
    folder: Path,
    model: Exportable,
    settings: Settings,
    stored: Stored,
    certificate: Certificate,
    quality: Quality | None = None,
) -> None:
    """Write the certificate and the manifest that names it."""
    write_certificate(folder, certificate)
    write_manifest(folder, describe(folder, model, settings, stored, quality))
