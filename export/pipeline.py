"""From a trained model to a bundle: the steps, in order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortolan import files
from ortolan.export.advice import advise, context_notes, risks
from ortolan.export.derived import DerivedWeights, recipes_of
from ortolan.export.duration import core_flops, seconds_of
from ortolan.export.errors import OptionError, ParityError
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.calibration import (
    Calibration,
    cut_inputs,
    own_calibration,
    read_calibration,
)
from ortolan.export.inputs.synthetic import synthetic_inputs
from ortolan.export.inputs.tensors import Inputs
from ortolan.export.inputs.writer import write
from ortolan.export.manifest import describe
from ortolan.export.options import (
    DEFAULTS,
    Device,
    ExportOptions,
    Precision,
)
from ortolan.export.output import staged_bundle, write_manifest
from ortolan.export.passes import tidy
from ortolan.export.passes.lower import lower
from ortolan.export.passes.portable_bodies import attach_bodies
from ortolan.export.progress import ESTIMATE, Progress, silent
from ortolan.export.proof.certificate import bound, certify, describe_failure, passed, thresholds
from ortolan.export.proof.placement import check_placement
from ortolan.export.proof.probes import inputs_of, make_probes, text_of
from ortolan.export.proof.replay import replay
from ortolan.export.proof.witness import Witness
from ortolan.export.quantize.auto import Chosen, choose
from ortolan.export.quantize.find import find_codes
from ortolan.export.quantize.schemes import assign_schemes
from ortolan.export.quantize.stored import default_precision, stored_schemes
from ortolan.export.settings import CACHE_SEQUENCES, Plan, draft_of, resolve
from ortolan.export.source import Source, open_exportable
from ortolan.export.source.names import located, located_adapter
from ortolan.export.source.reference import Reference, with_reference
from ortolan.export.weights.blob import bind
from ortolan.export.weights.int8_cache import MARGIN, with_int8_cache
from ortolan.export.weights.store import Stored, store
from ortolan.export.windows import with_windows
from ortolan.hub.fetch import origin_of
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle, open_parts
from ortolan.runtime.bundle.kinds import BOTH_WAYS, DECODER, PREFILL
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
from ortolan.runtime.bundle.quality import Quality
from ortolan.runtime.engine.providers import onnxruntime_version
from ortolan.runtime.machine.memory import return_large_memory
from ortolan.runtime.verification.certificate import Certificate
from ortolan.runtime.verification.certificate_files import JSON_NAME, write_certificate
from ortolan.runtime.verification.verified import remember, stamps


def export(
    source: Source,
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
    return_large_memory()
    source = located(source, revision=revision, via=options.via, progress=progress)
    model = _opened(source, max_context, options, reference)
    plan = _plan(model, precision, device, options)
    if warn is not None:
        expected = () if options.allow_poor else risks(model, plan)
        for note in (*model.notes, *context_notes(model), *expected):
            warn(note)
    model.check()
    data = _calibration(model, plan, calibration)
    inputs = _calibration_inputs(model, plan, data)
    report = progress or silent
    with staged_bundle(Path(out).absolute(), force=force) as folder:
        if progress is not None and plan.auto is None:
            writes = plan.calibrates and data is None
            expected_s = seconds_of(model, plan.quantization, writes=writes, flops=core_flops())
            report(ESTIMATE, 0, round(expected_s))
        model = _with_parts(folder, model, plan, report)
        job = Job(folder=folder, model=model, plan=plan, data=data, inputs=inputs, progress=report)
        _build(job)
    return _remembered(open_bundle(out))


def _remembered(bundle: Bundle) -> Bundle:
    # what was made here needs no first load in a subprocess
    for made in (bundle, *open_parts(bundle).values()):
        remember(made, stamps(made.path), onnxruntime=onnxruntime_version())
    return bundle


def _opened(
    source: Source, max_context: int | None, options: ExportOptions, reference: Reference | None
) -> Exportable:
    """Open the source, and the model to compare it with."""
    model = open_exportable(
        source,
        tokenizer=options.tokenizer,
        max_context=max_context,
        accept_unknown=options.accept_unknown,
        adapter=None if options.adapter is None else located_adapter(options.adapter),
        via=options.via,
        text_only=options.text_only,
        mtp=options.mtp,
    )
    if isinstance(source, str | Path):
        model = replace(model, repository=origin_of(Path(source).absolute()))
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
    takes_one = model.takes_one or device in model.takes_one_on
    features = model.features
    return resolve(
        model.kind,
        precision=default_precision(model) if precision is None else precision,
        device=device,
        options=options,
        takes_one=takes_one,
        sees_both_ways=features is not None and features.attention == "both_ways",
    )


def _plan_of_part(model: Exportable, plan: Plan) -> Plan:
    """Settings of a bundle in a bundle: as those of the whole, with at least 8 bits."""
    rounds = plan.precision in ("int8", "int4")
    kept = ("attention", "allow_cpu_nodes", "allow_poor", "proof")
    options = ExportOptions(**{name: getattr(plan.options, name) for name in kept})
    return _plan(model, "int8" if rounds else plan.precision, plan.device, options)


P = TypeVar("P", Features | None, HiddenStates | None, Comparison | None)


def _with_parts(folder: Path, model: Exportable, plan: Plan, progress: Progress) -> Exportable:
    """Export the encoder or the head that a model has; return the model bound to it."""
    bound: dict[str, str] = {}
    for name, part in model.parts.items():
        files.make_folder(folder / name)
        own = _plan_of_part(part, plan)
        job = Job(
            folder=folder / name,
            model=part,
            plan=own,
            data=None,
            inputs=Inputs(),
            progress=progress,
        )
        _build(job)
        bound[name] = fingerprint(open_bundle(folder / name).manifest)
    encoder = bound.get(VISION) or bound.get(SOUND)
    return replace(
        model,
        features=_bound(model.features, encoder=encoder),
        hidden=_bound(model.hidden, head=bound.get(MTP)),
        comparison=_bound(model.comparison, encoder=bound.get(TEXT)),
    )


def _bound(part: P, **fingerprints: str | None) -> P:
    """A part of a manifest with the fingerprints of what was exported for it."""
    known = {name: value for name, value in fingerprints.items() if value is not None}
    return part if part is None else msgspec.structs.replace(part, **known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """State of one export; each step returns a new one.

    Attributes:
        folder: where the bundle is built.
        model: to export.
        plan: resolved settings.
        data: calibration file, if any.
        inputs: cut from `data`, or written by the model, to calibrate on.
        graphs: tidied graphs by role; empty before tracing.
        progress: called as each step advances.
    """

    folder: Path
    model: Exportable
    plan: Plan
    data: Calibration | None
    inputs: Inputs
    progress: Progress
    graphs: Mapping[str, ir.Model] = field(default_factory=dict)


def _calibration(
    model: Exportable, plan: Plan, calibration: str | Path | None
) -> Calibration | None:
    """The file that was passed, or the checkpoint's own if the plan rounds any weight."""
    file = own_calibration(model) if calibration is None else Path(calibration)
    if file is None or (calibration is None and not plan.rounds):
        return None
    # The model may have been trained on the first part of the checkpoint's own file.
    is_learned_from = plan.calibrates or plan.options.cache == "int8" or calibration is None
    return read_calibration(file, model, is_learned_from=is_learned_from)


def _calibration_inputs(model: Exportable, plan: Plan, data: Calibration | None) -> Inputs:
    """Inputs to calibrate weights or cache on; none where `_synthetic_inputs` adds them later."""
    if data is None or not (plan.calibrates or plan.options.cache == "int8"):
        return Inputs()
    quantization = plan.quantization if plan.calibrates else None
    count = quantization.calibration_sequences if quantization else CACHE_SEQUENCES
    return cut_inputs(data, model, count=count)


def _build(job: Job) -> None:
    """Write a whole bundle, and prove it where the CPU can run it."""
    job = replace(job, graphs=_trace(job))
    job = replace(job, model=with_windows(job.model, job.graphs, job.plan))
    certificate = _reference(job)
    weights = DerivedWeights(job.model.weights, recipes_of(job.graphs.values()))
    job = replace(job, model=replace(job.model, weights=weights))
    if job.plan.calibrates and job.data is None:
        job = replace(job, inputs=_synthetic_inputs(job))
    if job.plan.options.cache == "int8":
        job = replace(job, model=_with_int8_cache(job))
    with files.temporary_folder(job.folder / "choice") as temporary:
        chosen = _choose(job, temporary)
        if chosen is not None:
            job = replace(job, plan=replace(job.plan, precision=chosen.precision))
        stored, witness = _write_files(job, chosen)
    certificate = replace(certificate, weights=witness.finish())
    graphs = (job.folder / graph.file for graph in job.plan.graph_files.values())
    certificate = bound(certificate, graphs)
    _write_certified(job, stored, certificate)
    if job.plan.unverified is not None:
        return  # the manifest says so, and the certificate holds the reference
    measured = replay(job.folder, job.progress)
    advice, quality = advise(job.model, job.plan), measured.quality
    if measured.verdict == "FAIL":
        raise ParityError(describe_failure(measured, certificate, advice))
    if quality.word != "excellent":
        quality = msgspec.structs.replace(quality, advice=advice)
    _write_certified(job, stored, passed(certificate, measured), quality)


def _reference(job: Job) -> Certificate:
    """PyTorch's outputs for the probes, and the bundle's limits."""
    options = job.plan.options
    return certify(
        job.model,
        make_probes(job.model, job.data, proof=options.proof, windows=True),
        thresholds=thresholds(
            job.plan.precision,
            output=job.model.output,
            max_kl=options.max_kl,
            allow_poor=options.allow_poor,
            cache=options.cache,
            device=job.plan.device,
        ),
        text=text_of(job.model, job.data),
        progress=job.progress,
    )


def _trace(job: Job) -> dict[str, ir.Model]:
    """Trace and tidy every graph, by role."""
    graphs, traced = job.plan.graph_files, dict[str, ir.Model]()
    for number, (role, graph) in enumerate(graphs.items()):
        job.progress("trace", number, len(graphs))
        if role == BOTH_WAYS:  # rewritten later (`passes.lower`)
            traced[role] = traced[PREFILL if PREFILL in traced else DECODER].clone()
        else:
            traced[role] = tidy(job.model.trace(role, graph, job.plan.dtype))
    job.progress("trace", len(graphs), len(graphs))
    return traced


def _synthetic_inputs(job: Job) -> Inputs:
    """Calibration inputs that the model writes itself, with a temporary draft of the bundle."""
    quantization = job.plan.quantization
    if quantization is None or (job.plan.auto is None and not _needs_inputs(job)):
        return Inputs()
    with files.temporary_folder(job.folder / "draft") as temporary:

        def write_texts(
            beginnings: Sequence[NDArray[Any]], *, tokens: int, length: int
        ) -> list[NDArray[np.int64]]:
            job.progress("write text", 0, 1)
            bundle = temporary / "bundle"
            files.make_folder(bundle)
            _write_draft(job, bundle)
            return write(bundle, beginnings, tokens=tokens, length=length, progress=job.progress)

        return synthetic_inputs(job.model, write_texts, count=quantization.calibration_sequences)


def _needs_inputs(job: Job) -> bool:
    """Whether any weight is fitted to inputs; stored codes and experts are not."""
    if job.plan.quantization is None:
        return False
    weights, quantization = job.model.weights, job.plan.quantization
    schemes = assign_schemes(job.graphs.values(), quantization, weights)
    stored = {} if quantization.reuse == "none" else stored_schemes(weights, schemes)
    return any(len(weights.shape(name)) == 2 for name in schemes.keys() - stored.keys())


def _write_draft(job: Job, folder: Path) -> None:
    """Write an 8-bit CPU bundle of the same model: quick to make, and not verified."""
    plan = draft_of(job.plan)
    # Nothing encodes text with the draft or asks for its source.
    model = replace(job.model, companions={}, sha256=lambda: "0" * 64)
    draft = replace(job, folder=folder, model=model, plan=plan, inputs=Inputs(), progress=silent)
    if plan.dtype == job.plan.dtype:
        graphs = {role: job.graphs[role].clone() for role in plan.graph_files}
    else:
        graphs = _trace(draft)
    stored, _ = _write_files(replace(draft, graphs=graphs))
    files.write(folder / JSON_NAME, b"")
    write_manifest(folder, describe(folder, model, plan, stored))


def _with_int8_cache(job: Job) -> Exportable:
    """The model with scales of its KV cache, from calibration inputs or the probes' text."""
    if job.inputs.ids:
        return with_int8_cache(job.model, job.graphs, job.inputs.ids)
    texts = inputs_of(job.model, make_probes(job.model)).ids
    return with_int8_cache(job.model, job.graphs, texts, margin=MARGIN)


def _choose(job: Job, folder: Path) -> Chosen | None:
    """Choose bits for every weight, unless they are fixed; temporary files go to `folder`."""
    if job.plan.auto is None:
        return None
    probes = make_probes(job.model, job.data, proof=job.plan.options.proof)
    return choose(
        list(job.graphs.values()),
        job.model,
        job.plan,
        job.inputs,
        inputs_of(job.model, probes),
        folder,
        job.progress,
    )


def _write_files(job: Job, chosen: Chosen | None = None) -> tuple[Stored, Witness]:
    """Write graphs, weights and companions: everything but certificate and manifest."""
    model, plan, quantization = job.model, job.plan, job.plan.quantization
    if chosen is not None:
        lowered = lower(job.graphs, plan, chosen.schemes)
        codes = chosen.weights(lowered.schemes)
    elif quantization is not None:
        schemes = assign_schemes(job.graphs.values(), quantization, model.weights)
        lowered = lower(job.graphs, plan, schemes)
        codes = find_codes(model, quantization, lowered.schemes, job.inputs, job.progress)
    else:
        lowered, codes = lower(job.graphs, plan, {}), iter(())
    check_placement(lowered.graphs, plan)
    weights = DerivedWeights(model.weights, recipes_of(lowered.graphs.values()))
    model = replace(model, weights=weights)
    witness = Witness(lowered.graphs.values())
    stored = store(
        job.folder,
        lowered,
        model,
        plan,
        codes,
        witness=witness,
        origin=job.inputs.origin,
        progress=job.progress,
    )
    for role, graph in lowered.graphs.items():
        bind(graph, stored.blob)
        if plan.options.attention == "portable":
            attach_bodies(graph)
        proto = ir.to_proto(graph)
        file = job.folder / plan.graph_files[role].file
        files.write(file, proto.SerializeToString(deterministic=True))
    for name, companion in model.companions.items():
        if isinstance(companion, bytes):
            files.write(job.folder / name, companion)
        else:
            files.copy(companion, job.folder / name)
    return stored, witness


def _write_certified(
    job: Job, stored: Stored, certificate: Certificate, quality: Quality | None = None
) -> None:
    """Write the certificate, and the manifest that names it."""
    write_certificate(job.folder, certificate)
    write_manifest(job.folder, describe(job.folder, job.model, job.plan, stored, quality))
