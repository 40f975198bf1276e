"""From a trained model to a bundle: the steps, in order."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx_ir as ir

from ortolan.export.derived import DerivedWeights, recipes_of
from ortolan.export.errors import OptionError, ParityError
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.calibration import (
    Calibration,
    can_read,
    cut_inputs,
    own_calibration,
    read_calibration,
)
from ortolan.export.inputs.tensors import Inputs
from ortolan.export.manifest import describe
from ortolan.export.options import DEFAULTS, Device, ExportOptions
from ortolan.export.output import staged_bundle, write_manifest
from ortolan.export.passes import tidy
from ortolan.export.passes.lower import lower
from ortolan.export.passes.portable_bodies import attach_bodies
from ortolan.export.precision import CALIBRATION_SEQUENCES, Precision
from ortolan.export.proof.certificate import certify, describe_failure, passed, thresholds
from ortolan.export.proof.placement import check_placement
from ortolan.export.proof.probes import inputs_of, make_probes
from ortolan.export.proof.replay import replay
from ortolan.export.quantize.auto import Chosen, choose
from ortolan.export.quantize.find import find_codes
from ortolan.export.quantize.plan import plan
from ortolan.export.settings import Settings, resolve
from ortolan.export.source import Source, open_exportable
from ortolan.export.weights.blob import bind, page_bytes, pages
from ortolan.export.weights.int8_cache import with_int8_cache
from ortolan.export.weights.store import Stored, store
from ortolan.runtime import certificate as runtime_certificate
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.certificate import Certificate

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
) -> Bundle:
    """Export a model and prove that the bundle computes what PyTorch computes.

    Args:
        source: a Hugging Face checkpoint folder, or a model of `ortolan.modeling`.
        out: the folder of the bundle.
        precision: of the weights: a name, or an `Int8`, `Int4` or `Auto`; `settings.DTYPES` has the
            type of the cache and the activations.
        device: to run on.
        calibration: a file to calibrate and judge by; see `own_calibration` for the default.
        max_context: tokens that have to fit; the model's own by default.
        options: the rest.
        force: replace a bundle at `out`.
        progress: told of every step.

    Raises:
        OrtolanError: see `export.errors`, and for the source `modeling.errors`.
    """
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
        can_calibrate=file is not None and can_read(model),
    )
    data = _calibration(model, settings, file, is_given=calibration is not None)
    inputs = _inputs(model, settings, data)
    with staged_bundle(Path(out).absolute(), force=force) as folder:
        _build(folder, model, settings, data, inputs, progress or _silent)
    return open_bundle(out)


def _silent(step: str, done: int, total: int) -> None:
    """Report nothing."""


def _calibration(
    model: Exportable, settings: Settings, file: Path | None, *, is_given: bool
) -> Calibration | None:
    """The given file, or the one beside the checkpoint where weights are quantized."""
    if file is None or not (is_given or settings.rounds):
        return None
    # The first part of a checkpoint's own file may be what the model was trained on.
    is_learned_from = settings.calibrates or settings.options.cache == "int8" or not is_given
    return read_calibration(file, model, is_learned_from=is_learned_from)


def _inputs(model: Exportable, settings: Settings, data: Calibration | None) -> Inputs:
    """What weights and cache are calibrated on; nothing where neither is."""
    if not settings.calibrates:
        if data is None or settings.options.cache == "float":
            return Inputs()
        return cut_inputs(data, model, count=CALIBRATION_SEQUENCES)
    if data is None or settings.quantization is None:
        raise OptionError("calibration: expected something to calibrate on, got nothing.")
    return cut_inputs(data, model, count=settings.quantization.calibration_sequences)


def _build(
    folder: Path,
    model: Exportable,
    settings: Settings,
    data: Calibration | None,
    inputs: Inputs,
    progress: Progress,
) -> None:
    """Write a whole bundle into a folder, and prove it there if the CPU can compute it."""
    certificate = _reference(model, settings, data, progress)
    traced = _trace(model, settings, progress)
    model = replace(model, weights=DerivedWeights(model.weights, recipes_of(traced.values())))
    if settings.options.cache == "int8":
        model = with_int8_cache(model, traced, inputs)
    with TemporaryDirectory(dir=folder, prefix="choice-") as temporary:
        chosen = _choose(Path(temporary), model, settings, traced, data, inputs, progress)
        if chosen is not None:
            settings = replace(settings, precision=chosen.precision)
        stored = _write_files(folder, model, settings, traced, inputs, progress, chosen)
    _write_certified(folder, model, settings, stored, certificate)
    if settings.unverified is not None:
        return  # the manifest says so, and the certificate holds the reference
    progress("verify", 0, 1)
    measured = replay(folder)
    if measured.verdict == "FAIL":
        raise ParityError(describe_failure(measured, certificate))
    _write_certified(folder, model, settings, stored, passed(certificate, measured))
    progress("verify", 1, 1)


def _reference(
    model: Exportable, settings: Settings, data: Calibration | None, progress: Progress
) -> Certificate:
    """What PyTorch computes, and the bounds that the bundle has to keep to."""
    options = settings.options
    bounds = thresholds(
        settings.precision, output=model.output, max_kl=options.max_kl, cache=options.cache
    )
    return certify(
        model,
        make_probes(model, data),
        thresholds=bounds,
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
        inputs_of(model, make_probes(model, data)),
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
    stored = store(lowered, model, settings, codes, folder, progress)
    for role, graph in lowered.graphs.items():
        bind(graph, stored.blob)
        proto = ir.to_proto(graph)
        if settings.options.attention == "portable":
            attach_bodies(proto)
        file = folder / settings.graph_files[role].file
        file.write_bytes(proto.SerializeToString(deterministic=True))
    for name, path in model.companions.items():
        shutil.copyfile(path, folder / name)
    return stored


def _write_certified(
    folder: Path, model: Exportable, settings: Settings, stored: Stored, certificate: Certificate
) -> None:
    """Write the certificate and the manifest that names it."""
    runtime_certificate.write(folder, certificate)
    write_manifest(folder, describe(folder, model, settings, stored))
