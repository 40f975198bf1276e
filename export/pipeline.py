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
from torch import Tensor

from ortolan.export.bundle import staged, write_manifest
from ortolan.export.calibration import (
    RECIPE,
    SEQUENCE_LENGTH,
    CalibrationText,
    cut_sequences,
    read_calibration,
    recipe_calibration,
)
from ortolan.export.certificate import certify, passed, thresholds
from ortolan.export.description import describe
from ortolan.export.errors import ExportError, OptionError, ParityError
from ortolan.export.kernels import check_kernels
from ortolan.export.options import (
    CALIBRATION_SEQUENCES,
    Attention,
    Form,
    Graphs,
    GroupSize,
    HeadBits,
    Options,
    Precision,
    Rounding,
    resolve,
)
from ortolan.export.passes import tidy
from ortolan.export.portable import attach_bodies
from ortolan.export.probes import make_probes
from ortolan.export.quantize.plan import Method
from ortolan.export.source import Source, open_source
from ortolan.export.store import Stored, store
from ortolan.export.trace import trace_decoder
from ortolan.export.weights import Blob, bind
from ortolan.modeling import Decoder
from ortolan.runtime import certificate as runtime_certificate
from ortolan.runtime.bundle import Bundle, open_bundle
from ortolan.runtime.certificate import Certificate, Report

Progress = Callable[[str, int, int], None]
"""Called with the step's name, what is done of it, and all of it."""


def export(
    source: str | Path | Decoder,
    out: str | Path,
    *,
    precision: Precision = "fp32",
    graphs: Graphs = "unified",
    attention: Attention = "fused",
    prefill_precision: Literal["int8"] | None = None,
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
        source: a Hugging Face checkpoint folder, or a module of `ortolan.modeling`.
        out: the folder of the bundle.
        precision: of the weights. Cache and activations are float32 with int8 and int4.
        graphs: one graph for every step, or one for prefill and one for decoding.
        attention: `portable` adds bodies of standard operators for other tools.
        prefill_precision: of weights for prefill alone: faster, for more memory.
        method: how codes are found; `options.resolve` has the default.
        group_size: values that share a scale; 128 by default.
        asymmetric: store a zero point for each group as well.
        head_bits: of head and embedding; 4 where int4 is calibrated, else 8.
        exclude: patterns of weights to keep in float32, such as `blocks.0.*`.
        max_kl: fail where the mean divergence from PyTorch is larger.
        calibration: a text to calibrate and judge by; that of a recipe in `source` by default.
        calibration_sequences: how many texts of 256 tokens to calibrate on.
        max_context: tokens that shall fit; the model's own by default.
        tokenizer: a tokenizer.json; the checkpoint's own by default.
        force: replace a bundle that stands at `out`.
        progress: told of every step.

    Raises:
        OrtolanError: see `export.errors`, and for the source `modeling.errors`.
    """
    model = open_source(source, tokenizer=tokenizer, max_context=max_context)
    recipe = _recipe(model)
    options = resolve(
        Form(precision, graphs, attention, prefill_precision),
        Rounding(method, group_size, asymmetric, head_bits, tuple(exclude)),
        max_kl=max_kl,
        can_calibrate=model.tokenizer is not None and (calibration or recipe) is not None,
    )
    text = _text(model, options, calibration, recipe)
    sequences = _sequences(model, options, text, calibration_sequences)
    with staged(Path(out).absolute(), force=force) as folder:
        _build(folder, model, options, text, sequences, progress or _silent)
    return open_bundle(out)


def _build(
    folder: Path,
    model: Source,
    options: Options,
    text: CalibrationText | None,
    sequences: Sequence[Tensor],
    report: Progress,
) -> None:
    """Write a whole bundle into a folder, and prove it there."""
    check_kernels(model.config)
    certificate = _reference(model, options, text, report)
    traced = _trace(model, options, report)
    stored = store(traced, model, options, sequences, folder, report)
    _write_graphs(traced, stored.blob, options, folder)
    for name, path in model.companions.items():
        shutil.copyfile(path, folder / name)
    _write_certified(folder, model, options, stored, certificate)
    report("verify", 0, 1)
    measured = _verify(folder)
    if measured.verdict == "FAIL":
        raise ParityError(_describe(measured, certificate))
    _write_certified(folder, model, options, stored, passed(certificate, measured))
    report("verify", 1, 1)


def _silent(step: str, done: int, total: int) -> None:
    """Report nothing."""


def _recipe(model: Source) -> Path | None:
    """The recipe beside a checkpoint, which names the text it was trained on."""
    path = None if model.folder is None else model.folder / RECIPE
    return path if path is not None and path.is_file() else None


def _text(
    model: Source, options: Options, calibration: str | Path | None, recipe: Path | None
) -> CalibrationText | None:
    """The text that was given, or the one of the recipe where weights are rounded."""
    if calibration is not None and model.tokenizer is None:
        raise OptionError(
            f"{calibration}: expected a checkpoint with tokenizer.json to read this text "
            "with, got none. Leave --calibration out or add the tokenizer."
        )
    if calibration is not None:
        return read_calibration(Path(calibration), is_learned_from=_calibrates(options))
    if options.quantization is not None and recipe is not None:
        return recipe_calibration(recipe)
    return None


def _calibrates(options: Options) -> bool:
    return options.quantization is not None and options.quantization.method == "gptq"


def _reference(
    model: Source, options: Options, text: CalibrationText | None, report: Progress
) -> Certificate:
    probes = make_probes(
        vocab_size=model.config.vocab_size,
        context_length=model.config.context_length,
        tokenizer=model.tokenizer,
        text=None if text is None else text.held_out,
        origin="" if text is None else text.origin,
    )
    return certify(
        model.config,
        model.weights,
        model.tables,
        probes,
        thresholds=thresholds(options.precision, max_kl=options.max_kl),
        progress=lambda done, total: report("reference", done, total),
    )


def _trace(model: Source, options: Options, report: Progress) -> dict[str, ir.Model]:
    """Each graph by its role, tidied."""
    traced = {}
    for number, (role, graph) in enumerate(options.graph_files.items()):
        report("trace", number, len(options.graph_files))
        ir_model = trace_decoder(model.config, dtype=options.dtype, sequence=graph.sequence)
        traced[role] = tidy(ir_model)
    report("trace", len(traced), len(traced))
    return traced


def _sequences(
    model: Source, options: Options, text: CalibrationText | None, count: int
) -> list[Tensor]:
    """The texts that a method calibrates on, none for a method that does not."""
    if not _calibrates(options):
        return []
    if text is None or model.tokenizer is None:
        raise OptionError("calibration: expected a text and a tokenizer, got neither.")
    length = min(SEQUENCE_LENGTH, model.config.context_length)
    return cut_sequences(text, model.tokenizer, count=count, length=length)


def _write_graphs(traced: dict[str, ir.Model], blob: Blob, options: Options, folder: Path) -> None:
    for role, ir_model in traced.items():
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


def _describe(measured: Report, certificate: Certificate) -> str:
    """Why a bundle was refused, with its figures."""
    bounds = certificate.thresholds
    where = measured.first_divergence
    place = f" First at {where.probe}, position {where.position}, {where.phase}." if where else ""
    found = f"{measured.non_finite} positions not finite.{place} The bundle was not kept."
    if bounds.max_abs_delta is None:
        return (
            f"quality: expected a mean KL divergence of at most {bounds.mean_kl:.3g} from PyTorch, "
            f"got {measured.mean_kl:.3g}, {measured.top1_agreement:.2%} of the most probable "
            f"tokens equal and {found} Try --precision int8, --method gptq with --calibration, "
            "or a smaller --group-size."
        )
    delta = bounds.max_abs_delta * max(1.0, measured.max_abs_logit)
    return (
        f"parity: expected logits within {delta:.3g} of PyTorch's, a mean KL divergence of at "
        f"most {bounds.mean_kl:.3g} and the same most probable tokens, got "
        f"{measured.max_abs_delta:.3g}, {measured.mean_kl:.3g}, {measured.top1_agreement:.2%} "
        f"equal and {found}"
    )
