"""From a trained model to a bundle: the steps, in order."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import onnx_ir as ir

from ortolan.export.errors import ExportError, OptionError, ParityError
from ortolan.export.manifest import describe
from ortolan.export.options import (
    CALIBRATION_SEQUENCES,
    Attention,
    Device,
    Form,
    Graphs,
    GroupSize,
    HeadBits,
    Options,
    Precision,
    Rounding,
    kind_of,
    resolve,
)
from ortolan.export.output import staged, write_manifest
from ortolan.export.passes import tidy
from ortolan.export.passes.portable_bodies import attach_bodies
from ortolan.export.proof.certificate import certify, describe_failure, passed, thresholds
from ortolan.export.proof.placement import check_placement
from ortolan.export.proof.probes import make_probes
from ortolan.export.quantize.plan import Method
from ortolan.export.source.calibration import (
    Calibration,
    can_read,
    cut_inputs,
    own_calibration,
    read_calibration,
)
from ortolan.export.source.checkpoint import Source, open_source
from ortolan.export.source.inputs import Inputs
from ortolan.export.trace import trace_graph
from ortolan.export.weights.blob import Blob, bind
from ortolan.export.weights.store import Lowered, Stored, lower, store
from ortolan.modeling.models.stack import Model
from ortolan.runtime import certificate as runtime_certificate
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.certificate import Certificate, Report

Progress = Callable[[str, int, int], None]
"""Called with the step's name, what is done of it, and all of it."""


def export(
    source: str | Path | Model,
    out: str | Path,
    *,
    device: Device = "cpu",
    precision: Precision = "fp32",
    graphs: Graphs = "unified",
    attention: Attention = "fused",
    prefill_precision: Literal["int8"] | None = None,
    attention_maps: bool = False,
    allow_cpu_nodes: bool = False,
    method: Method | None = None,
    group_size: GroupSize | None = None,
    asymmetric: bool = False,
    head_bits: HeadBits | None = None,
    exclude: Sequence[str] = (),
    max_kl: float | None = None,
    calibration: str | Path | None = None,
    calibration_sequences: int = CALIBRATION_SEQUENCES,
    max_context: int | None = None,
    tokenizer: str | Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Bundle:
    """Export a model and prove that the bundle computes what PyTorch computes.

    Args:
        source: a Hugging Face checkpoint folder, or a model of `ortolan.modeling`.
        out: the folder of the bundle.
        device: what to run on.
        precision: of the weights; `options.DTYPES` has that of cache and activations.
        graphs: one graph for every step, or one for prefill and one for decoding.
        attention: `portable` adds bodies of standard operators for other tools.
        prefill_precision: of weights for prefill alone, or of all that an encoder has.
        attention_maps: write a graph of what each token attends to.
        allow_cpu_nodes: let the CPU compute what the device has no kernel for.
        method: how codes are found; `options.resolve` has the default.
        group_size: values that share a scale; 128 by default, 256 in blocks below a head of 4 bits.
        asymmetric: store a zero point for each group as well.
        head_bits: of head and embedding; 4 where a decoder is calibrated to int4, else 8.
        exclude: patterns of weights not to round, such as `blocks.0.*`.
        max_kl: fail where the mean divergence from PyTorch is larger.
        calibration: a file to calibrate and judge by; see `own_calibration` for the default.
        calibration_sequences: how many texts of 256 tokens to calibrate on.
        max_context: tokens that shall fit; the model's own by default.
        tokenizer: a tokenizer.json; the checkpoint's own by default.
        force: replace a bundle that stands at `out`.
        progress: told of every step.

    Raises:
        OrtolanError: see `export.errors`, and for the source `modeling.errors`.
    """
    model = open_source(source, tokenizer=tokenizer, max_context=max_context)
    form = Form(
        device, precision, graphs, attention, prefill_precision, attention_maps, allow_cpu_nodes
    )
    rounding = Rounding(method, group_size, asymmetric, head_bits, tuple(exclude))
    options = _resolve(model, form, rounding, max_kl, calibration)
    data, inputs = _learned_from(model, options, calibration, calibration_sequences)
    return _make(Path(out), model, options, data, inputs, force=force, report=progress or _silent)


def _resolve(
    model: Source,
    form: Form,
    rounding: Rounding,
    max_kl: float | None,
    calibration: str | Path | None,
) -> Options:
    """What was asked for, with defaults that depend on the model."""
    return resolve(
        kind_of(model.config),
        form,
        rounding,
        max_kl=max_kl,
        can_calibrate=can_read(model) and (calibration or own_calibration(model)) is not None,
    )


def _learned_from(
    model: Source, options: Options, calibration: str | Path | None, count: int
) -> tuple[Calibration | None, Inputs]:
    """What to judge by, and what of it to calibrate on."""
    data = _calibration(model, options, calibration)
    return data, _inputs(model, options, data, count)


def _make(
    out: Path,
    model: Source,
    options: Options,
    data: Calibration | None,
    inputs: Inputs,
    *,
    force: bool,
    report: Progress,
) -> Bundle:
    """A bundle in its place, whole or not at all."""
    with staged(out.absolute(), force=force) as folder:
        _build(folder, model, options, data, inputs, report)
    return open_bundle(out)


def _build(
    folder: Path,
    model: Source,
    options: Options,
    data: Calibration | None,
    inputs: Inputs,
    report: Progress,
) -> None:
    """Write a whole bundle into a folder, and prove it there if the CPU can compute it."""
    certificate = _reference(model, options, data, report)
    lowered = lower(_trace(model, options, report), options)
    check_placement(lowered.graphs, options)
    stored = store(lowered, model, options, inputs, folder, report)
    _write_graphs(lowered, stored.blob, options, folder)
    for name, path in model.companions.items():
        shutil.copyfile(path, folder / name)
    _write_certified(folder, model, options, stored, certificate)
    if options.unverified is not None:
        return  # the manifest says so, and the certificate holds the reference
    report("verify", 0, 1)
    measured = _verify(folder)
    if measured.verdict == "FAIL":
        raise ParityError(describe_failure(measured, certificate))
    _write_certified(folder, model, options, stored, passed(certificate, measured))
    report("verify", 1, 1)


def _silent(step: str, done: int, total: int) -> None:
    """Report nothing."""


def _calibration(model: Source, options: Options, given: str | Path | None) -> Calibration | None:
    """The given file, or the one beside the checkpoint where weights are quantized."""
    if given is not None:
        return read_calibration(Path(given), model, is_learned_from=_calibrates(options))
    own = None if options.quantization is None else own_calibration(model)
    # Its first part may be what the model was trained on, so only its last part is judged by.
    return None if own is None else read_calibration(own, model, is_learned_from=True)


def _calibrates(options: Options) -> bool:
    return options.quantization is not None and options.quantization.method == "gptq"


def _reference(
    model: Source, options: Options, data: Calibration | None, report: Progress
) -> Certificate:
    given = "logits" if model.gives is None else model.gives.kind
    return certify(
        model,
        make_probes(model, data),
        thresholds=thresholds(options.precision, given=given, max_kl=options.max_kl),
        progress=lambda done, total: report("reference", done, total),
    )


def _trace(model: Source, options: Options, report: Progress) -> dict[str, ir.Model]:
    """Each graph by its role, tidied."""
    traced = {}
    for number, (role, graph) in enumerate(options.graph_files.items()):
        report("trace", number, len(options.graph_files))
        traced[role] = tidy(trace_graph(model.config, role, graph, dtype=options.dtype))
    report("trace", len(traced), len(traced))
    return traced


def _inputs(model: Source, options: Options, data: Calibration | None, count: int) -> Inputs:
    """What a method calibrates on, nothing for a method that does not."""
    if not _calibrates(options):
        return Inputs()
    if data is None:
        raise OptionError("calibration: expected something to calibrate on, got nothing.")
    return cut_inputs(data, model, count=count)


def _write_graphs(lowered: Lowered, blob: Blob, options: Options, folder: Path) -> None:
    for role, ir_model in lowered.graphs.items():
        bind(ir_model, blob)
        proto = ir.to_proto(ir_model)
        if options.attention == "portable":
            attach_bodies(proto)
        file = folder / options.graph_files[role].file
        file.write_bytes(proto.SerializeToString(deterministic=True))


def _write_certified(
    folder: Path, model: Source, options: Options, stored: Stored, certificate: Certificate
) -> None:
    """Write the certificate and the manifest that names it."""
    runtime_certificate.write(folder, certificate)
    write_manifest(folder, describe(folder, model, options, stored))


_VERIFY = """
import sys, msgspec
from ortolan.runtime.certificate import verify
from ortolan.errors import OrtolanError
try:
    report = verify(sys.argv[1], device="cpu")
except OrtolanError as error:
    sys.exit(f"{type(error).__name__}: {error}")
sys.stdout.buffer.write(msgspec.json.encode(report))
"""


def _verify(folder: Path) -> Report:
    """Replay the certificate in a process of its own, whose memory is not ours."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    done = subprocess.run(
        # -P: the working directory is no place to import from
        [sys.executable, "-P", "-c", _VERIFY, str(folder)],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": path},
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        message = lines[-1] if lines else f"exit status {done.returncode}"
        raise ExportError(f"verify: expected the new bundle to run, got: {message}")
    return msgspec.json.decode(done.stdout, type=Report)
