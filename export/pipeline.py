"""From a trained model to a bundle: the steps, in order."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec
import onnx_ir as ir

from ortolan import files
from ortolan.export.advice import advise, risks, untrained
from ortolan.export.duration import core_flops, outlook, told
from ortolan.export.errors import OptionError, ParityError
from ortolan.export.exportable import Exportable
from ortolan.export.graphs import trace, with_derived
from ortolan.export.inputs.calibration import (
    Data,
    cut_inputs,
    own_calibration,
    read_calibration,
)
from ortolan.export.low_bit import CACHE_SEQUENCES, CHEAPER
from ortolan.export.options import DEFAULTS, Device, ExportOptions, Int4, Int8, Precision
from ortolan.export.output import describe_files, staged_bundle, write_manifest
from ortolan.export.progress import ESTIMATE, Progress, silent
from ortolan.export.proof.certificate import certify, describe_failure, passed, thresholds
from ortolan.export.proof.probes import make_probes, text_of
from ortolan.export.proof.replay import replay
from ortolan.export.quantize.stored import default_precision
from ortolan.export.settings import Plan, resolve
from ortolan.export.source import AnySource, open_exportable
from ortolan.export.source.names import located, located_adapter
from ortolan.export.source.reference import Reference, with_reference
from ortolan.export.unfinished import finished, key_of, unfinished
from ortolan.export.windows import with_windows
from ortolan.export.witness.ask import ask, beforehand
from ortolan.export.write import write
from ortolan.hub.fetch import origin_of
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle, open_parts
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.manifest_file import fingerprint
from ortolan.runtime.bundle.parts import (
    MTP,
    SOUND,
    TEXT,
    VISION,
    Comparison,
    Features,
    HiddenStates,
)
from ortolan.runtime.engine.providers import onnxruntime_version
from ortolan.runtime.machine.memory import return_large_memory
from ortolan.runtime.verification.certificate import Certificate
from ortolan.runtime.verification.certificate_files import ARRAYS_NAME, JSON_NAME, write_certificate
from ortolan.runtime.verification.report import Report
from ortolan.runtime.verification.verified import remember, stamps


def export(
    source: AnySource,
    out: str | Path,
    *,
    precision: Precision | None = None,
    device: Device = "cpu",
    calibration: str | Path | None = None,
    max_context: int | None = None,
    options: ExportOptions = DEFAULTS,
    reference: Reference | None = None,
    revision: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> Bundle:
    """Export a model, and prove that the bundle computes what PyTorch computes.

    Args:
        source: a checkpoint (see `open_checkpoint`), its name on the Hugging Face Hub, or a live
            model: of `ortolan.modeling`, of transformers, or your own module.
        out: folder of the bundle.
        precision: of the weights: a name, or an `Int8`, `Int4` or `Auto`. By default int8 for a
            quantized checkpoint, whose codes are kept, and fp32 for others.
        device: target device.
        calibration: file to calibrate and measure quality with; by default the checkpoint's own
            (`own_calibration`), or else what the model writes (`inputs.synthetic`).
        max_context: longest context in tokens; by default the model's own, or the longest that
            shares one set of rotary frequencies.
        options: advanced settings; see `ExportOptions`.
        reference: the model that your own module was ported from: a module, or a function from ids
            `(1, S)` to the logits of every token (see `export.source.reference`).
        revision: branch, tag or commit of a name.
        force: replace a bundle at `out`.
        progress: called as each step advances.
        warn: called before any work with each way in which the bundle will differ from the model.

    Raises:
        OrtolanError: see `export.errors`, and `modeling.errors` for the source.
    """
    started = time.monotonic()
    return_large_memory()
    report, tell = progress or silent, warn or (lambda _: None)
    source, options = _located(source, revision, options, progress)
    model = _open(source, max_context, options, reference)
    plan = _plan(model, precision, device, options)
    for note in (*model.notes, *(() if options.allow_poor else risks(model, plan))):
        tell(note)
    if model.check is not None:
        model.check()
    data = _read_data(model, plan, calibration, tell)
    with unfinished(Path(out)) as kept, staged_bundle(Path(out).absolute(), force=force) as folder:
        if plan.calibrates:
            data = replace(data, work=kept.begin(key_of(model, plan, data)))
        _estimate(model, plan, precision, data, progress)
        with beforehand(source, options, is_long=plan.calibrates) as child:
            manifest = _build(folder, model, plan, data, report)
            took_s = time.monotonic() - started
            witness = ask(folder, source, model, options, max_context, took_s, child, report)
        write_manifest(folder, msgspec.structs.replace(manifest, witness=witness))
    return _remembered(open_bundle(out))


def _located(
    source: AnySource, revision: str | None, options: ExportOptions, progress: Progress | None
) -> tuple[AnySource, ExportOptions]:
    """Fetch the source and the adapter, where they are names on the Hub."""
    source = located(source, revision=revision, via=options.via, progress=progress)
    if options.adapter is not None:
        options = replace(options, adapter=located_adapter(options.adapter))
    return source, options


def _estimate(
    model: Exportable,
    plan: Plan,
    precision: Precision | None,
    data: Data,
    progress: Progress | None,
) -> None:
    """Tell how long the work will take, and with the next cheaper effort."""
    if progress is None or plan.auto is not None:
        return
    writes, flops = data.file is None, core_flops()
    steps = outlook(model, plan, writes=writes, flops=flops)
    total, sentence, end = sum(steps.values()), told(sum(steps.values())), 0.0
    weights = Int4() if precision == "int4" else precision
    if plan.calibrates and isinstance(weights, Int4 | Int8) and weights.method is None:
        effort, cheaper = weights.effort, CHEAPER[weights.effort]
        other = _plan(model, replace(weights, effort=cheaper), plan.device, plan.options)
        cheaper_s = sum(outlook(model, other, writes=writes, flops=flops).values())
        sentence = told(total, cheaper_s, effort, cheaper)
    if data.work is not None and (done := finished(data.work)):
        sentence += f"; continues an interrupted export, of which {done} weights are finished"
    progress(ESTIMATE, 0, round(total), sentence)
    for step, seconds in steps.items():
        end += seconds
        progress(ESTIMATE, round(end), round(total), step)


def _remembered(bundle: Bundle) -> Bundle:
    """Remember that a bundle was made here, so that it needs no first load in a subprocess."""
    for made in (bundle, *open_parts(bundle).values()):
        remember(made, stamps(made.path), onnxruntime=onnxruntime_version())
    return bundle


def _build(folder: Path, model: Exportable, plan: Plan, data: Data, progress: Progress) -> Manifest:
    """Write a bundle after those of its parts, and prove it where the CPU can run it."""
    if model.parts:
        model = _with_parts(folder, model, plan, progress)
    model, graphs = _trace(model, plan, progress)
    certificate = _reference(model, plan, data, progress)
    manifest, certificate = write(folder, model, plan, graphs, data, certificate, progress)
    if plan.unverified is not None:
        return manifest  # it says so, and the certificate holds the reference
    advice = advise(model, plan)
    measured = _verify(folder, certificate, advice, progress)
    return _seal(folder, manifest, certificate, measured, advice)


def _open(
    source: AnySource, max_context: int | None, options: ExportOptions, reference: Reference | None
) -> Exportable:
    """Open the source, and the model to compare it with."""
    model = open_exportable(source, options, max_context=max_context)
    if isinstance(source, str | Path):
        repository = origin_of(Path(source).absolute())
        model = replace(model, origin=replace(model.origin, repository=repository))
    return model if reference is None else with_reference(model, reference)


def _plan(
    model: Exportable, precision: Precision | None, device: Device, options: ExportOptions
) -> Plan:
    """Resolve the settings, with what the device means for this model."""
    if options.attention_maps and device in model.takes_one_on:
        raise OptionError(f"attention_maps of this recurrent network needs the cpu (got {device}).")
    if model.takes_one_on and options.prefill_precision is None:
        # recurrent operators leave no products to multiply integers in
        options = replace(options, prefill_precision="float")
    features = model.features
    return resolve(
        model.kind,
        precision=default_precision(model) if precision is None else precision,
        device=device,
        options=options,
        takes_one=model.takes_one or device in model.takes_one_on,
        sees_both_ways=features is not None and features.attention == "both_ways",
    )


def _plan_of_part(model: Exportable, plan: Plan) -> Plan:
    """Settings of a bundle in a bundle: as those of the whole, with at least 8 bits."""
    rounds, own = plan.precision in ("int8", "int4"), plan.options
    options = ExportOptions(
        attention=own.attention,
        allow_cpu_nodes=own.allow_cpu_nodes,
        allow_poor=own.allow_poor,
        proof=own.proof,
    )
    return _plan(model, "int8" if rounds else plan.precision, plan.device, options)


def _read_data(
    model: Exportable, plan: Plan, calibration: str | Path | None, tell: Callable[[str], None]
) -> Data:
    """The file that was passed, or the checkpoint's own if the plan rounds any weight."""
    data = _data(model, plan, calibration)
    for note in untrained(model, plan, data.inputs):
        tell(note)
    return data


def _data(model: Exportable, plan: Plan, calibration: str | Path | None) -> Data:
    path = own_calibration(model) if calibration is None else Path(calibration)
    if path is None or (calibration is None and not plan.rounds):
        return Data()
    fits = plan.calibrates or plan.options.cache == "int8"
    # The model may have been trained on the first part of the checkpoint's own file.
    file = read_calibration(path, model, is_learned_from=fits or calibration is None)
    if not fits:
        return Data(file=file)
    quantization = plan.quantization if plan.calibrates else None
    count = quantization.calibration_sequences if quantization else CACHE_SEQUENCES
    return Data(file=file, inputs=cut_inputs(file, model, count=count))


P = TypeVar("P", Features | None, HiddenStates | None, Comparison | None)


def _with_parts(folder: Path, model: Exportable, plan: Plan, progress: Progress) -> Exportable:
    """Export the encoder or the head that a model has; return the model with its fingerprint."""
    made: dict[str, str] = {}
    for name, part in model.parts.items():
        files.make_folder(folder / name)
        manifest = _build(folder / name, part, _plan_of_part(part, plan), Data(), progress)
        made[name] = fingerprint(manifest)
    encoder = made.get(VISION) or made.get(SOUND)
    return replace(
        model,
        features=_naming(model.features, encoder=encoder),
        hidden=_naming(model.hidden, head=made.get(MTP)),
        comparison=_naming(model.comparison, encoder=made.get(TEXT)),
    )


def _naming(part: P, **fingerprints: str | None) -> P:
    """A part of a manifest that names what was exported for it by its fingerprint."""
    known = {name: value for name, value in fingerprints.items() if value is not None}
    return part if part is None else msgspec.structs.replace(part, **known)


def _trace(
    model: Exportable, plan: Plan, progress: Progress
) -> tuple[Exportable, dict[str, ir.Model]]:
    """Every graph, by role, and the model with the weights and the windows that they read."""
    graphs = trace(model, plan, progress)
    return with_windows(with_derived(model, graphs), graphs, plan), graphs


def _reference(model: Exportable, plan: Plan, data: Data, progress: Progress) -> Certificate:
    """PyTorch's outputs for the probes, and the bundle's limits."""
    options = plan.options
    return certify(
        model,
        make_probes(model, data.file, proof=options.proof, windows=True),
        thresholds=thresholds(
            plan.precision,
            output=model.output_kind,
            max_kl=options.max_kl,
            allow_poor=options.allow_poor,
            cache=options.cache,
            device=plan.device,
        ),
        text=text_of(model, data.file),
        progress=progress,
    )


def _verify(
    folder: Path, certificate: Certificate, advice: tuple[str, ...], progress: Progress
) -> Report:
    """Replay the certificate on the CPU.

    Raises:
        ParityError: the bundle disagrees with PyTorch, or its quality is poor.
    """
    measured = replay(folder, progress)
    if measured.verdict == "FAIL":
        raise ParityError(describe_failure(measured, certificate, advice))
    return measured


def _seal(
    folder: Path,
    manifest: Manifest,
    certificate: Certificate,
    measured: Report,
    advice: tuple[str, ...],
) -> Manifest:
    """Write what was measured into the certificate and the manifest."""
    quality = measured.quality
    if quality.word != "excellent":
        quality = msgspec.structs.replace(quality, advice=advice)
    write_certificate(folder, passed(certificate, measured))
    kept = tuple(file for file in manifest.files if file.name not in (JSON_NAME, ARRAYS_NAME))
    manifest = msgspec.structs.replace(
        manifest, quality=quality, files=describe_files(folder, kept)
    )
    write_manifest(folder, manifest)
    return manifest
