"""From a trained model to a bundle: the steps, in order."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import msgspec
import onnx_ir as ir
import torch

from ortolan import __version__
from ortolan.export.bundle import describe_files, staged, write_manifest
from ortolan.export.certificate import certify
from ortolan.export.errors import ExportError, OptionError, ParityError
from ortolan.export.kernels import check_kernels
from ortolan.export.passes import tidy
from ortolan.export.portable import attach_bodies
from ortolan.export.probes import make_probes
from ortolan.export.source import Source, open_source
from ortolan.export.trace import cache_names, trace_decoder
from ortolan.export.weights import Blob, bind, write_blob
from ortolan.modeling import Decoder
from ortolan.runtime import certificate as runtime_certificate
from ortolan.runtime.bundle import Bundle, open_bundle
from ortolan.runtime.certificate import Certificate, Report
from ortolan.runtime.manifest import Graph, Manifest, Provenance, State

Progress = Callable[[str, int, int], None]
"""Called with the step's name, what is done of it, and all of it."""

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}

DEVICES = {
    # The CUDA kernel of GroupQueryAttention takes 16-bit floats only.
    "fp32": ("cpu",),
    "fp16": ("cpu", "cuda"),
}

GRAPHS: dict[str, dict[str, Graph]] = {
    "unified": {"decoder": Graph(file="decoder.onnx")},
    "split": {
        "prefill": Graph(file="prefill.onnx"),
        "decode": Graph(file="decode.onnx", sequence=1),
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    precision: Literal["fp32", "fp16"]
    graphs: Literal["unified", "split"]
    attention: Literal["fused", "portable"]


def export(
    source: str | Path | Decoder,
    out: str | Path,
    *,
    precision: Literal["fp32", "fp16"] = "fp32",
    graphs: Literal["unified", "split"] = "unified",
    attention: Literal["fused", "portable"] = "fused",
    max_context: int | None = None,
    tokenizer: str | Path | None = None,
    calibration: str | Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Bundle:
    """Export a model and prove that the bundle computes what PyTorch computes.

    Memory is bounded by one layer, not by the model. The bundle appears at `out` when every
    step has succeeded; until then what stood there is untouched.

    Args:
        source: a Hugging Face checkpoint folder, or a module of `ortolan.modeling`.
        out: the folder of the bundle.
        precision: of weights, cache and activations.
        graphs: one graph for every step, or one for prefill and one for decoding.
        attention: `portable` adds bodies of standard operators for other tools.
        max_context: tokens that shall fit; the model's own by default.
        tokenizer: a tokenizer.json; the checkpoint's own by default.
        calibration: a text to prove parity on; a built-in one by default.
        force: replace a bundle that stands at `out`.
        progress: told of every step.

    Raises:
        CheckpointError, ConfigError: the source cannot be read (`ortolan.modeling.errors`).
        OptionError: an option cannot be honoured.
        ExportError: the model cannot be exported: no kernel, or values that do not fit.
        OutputError: `out` is taken or locked.
        ParityError: the bundle misses a threshold; it was not kept.
    """
    options = _Options(precision=precision, graphs=graphs, attention=attention)
    _check(options)
    report = progress or _silent
    model = open_source(source, tokenizer=tokenizer, max_context=max_context)
    check_kernels(model.config)
    target = Path(out).absolute()
    with staged(target, force=force) as folder:
        certificate = _reference(model, options, calibration, report)
        traced = _trace(model, options, report)
        blob = _write_weights(traced, model, options, folder, report)
        _write_graphs(traced, blob, options, folder)
        for name, path in model.companions.items():
            shutil.copyfile(path, folder / name)
        _write_certified(folder, model, options, blob, certificate)
        report("verify", 0, 1)
        measured = _verify(folder)
        if measured.verdict == "FAIL":
            raise ParityError(_describe(measured, certificate))
        passed = replace(certificate, measured=measured)
        _write_certified(folder, model, options, blob, passed)
        report("verify", 1, 1)
    return open_bundle(target)


def _check(options: _Options) -> None:
    """Raise OptionError for a value that is none of the choices."""
    for name, value, choices in (
        ("precision", options.precision, DTYPES),
        ("graphs", options.graphs, GRAPHS),
        ("attention", options.attention, ("fused", "portable")),
    ):
        if value not in choices:
            raise OptionError(f"{name}: expected one of {', '.join(choices)}, got {value!r}.")


def _silent(step: str, done: int, total: int) -> None:
    """Report nothing."""


def _reference(
    model: Source, options: _Options, calibration: str | Path | None, report: Progress
) -> Certificate:
    probes = make_probes(
        vocab_size=model.config.vocab_size,
        context_length=model.config.context_length,
        tokenizer=model.companions.get("tokenizer.json"),
        calibration=None if calibration is None else Path(calibration),
    )
    return certify(
        model.config,
        model.weights,
        model.tables,
        probes,
        precision=options.precision,
        progress=lambda done, total: report("reference", done, total),
    )


def _trace(model: Source, options: _Options, report: Progress) -> dict[str, ir.Model]:
    """Each graph by its file name, tidied."""
    graphs = GRAPHS[options.graphs].values()
    traced = {}
    for number, graph in enumerate(graphs):
        report("trace", number, len(graphs))
        dtype = DTYPES[options.precision]
        ir_model = trace_decoder(model.config, dtype=dtype, sequence=graph.sequence)
        traced[graph.file] = tidy(ir_model, portable=options.attention == "portable")
    report("trace", len(graphs), len(graphs))
    return traced


def _write_weights(
    traced: dict[str, ir.Model], model: Source, options: _Options, folder: Path, report: Progress
) -> Blob:
    return write_blob(
        list(traced.values()),
        model.weights,
        model.tables,
        folder,
        dtype=DTYPES[options.precision],
        progress=lambda done, total: report("weights", done, total),
    )


def _write_graphs(traced: dict[str, ir.Model], blob: Blob, options: _Options, folder: Path) -> None:
    for name, ir_model in traced.items():
        bind(ir_model, blob)
        proto = ir.to_proto(ir_model)
        if options.attention == "portable":
            attach_bodies(proto)
        (folder / name).write_bytes(proto.SerializeToString(deterministic=True))


def _write_certified(
    folder: Path, model: Source, options: _Options, blob: Blob, certificate: Certificate
) -> None:
    """Write the certificate and the manifest that names it."""
    runtime_certificate.write(folder, certificate)
    write_manifest(folder, _manifest(folder, model, options, blob))


def _manifest(folder: Path, model: Source, options: _Options, blob: Blob) -> Manifest:
    config = model.config
    packages = ("torch", "onnx", "onnx-ir", "onnxscript")
    return Manifest(
        schema=1,
        kind="decoder",
        precision=options.precision,
        attention=options.attention,
        devices=DEVICES[options.precision],
        context_length=config.context_length,
        vocab_size=config.vocab_size,
        graphs=GRAPHS[options.graphs],
        states=_states(model, options),
        weights=(blob.file.name,),
        tokens=model.tokens,
        tokenizer="tokenizer.json" if "tokenizer.json" in model.companions else None,
        certificate=runtime_certificate.JSON_NAME,
        files=describe_files(folder, (blob.file,)),
        provenance=Provenance(
            source_sha256=model.sha256,
            model_type=config.model_type,
            versions={"ortolan": __version__, **{name: version(name) for name in packages}},
        ),
    )


def _states(model: Source, options: _Options) -> tuple[State, ...]:
    config = model.config
    dtype: Literal["float32", "float16"] = "float16" if options.precision == "fp16" else "float32"
    past, present = (cache_names(prefix, config) for prefix in ("past_key_values", "present"))
    return tuple(
        State(
            name=given.removeprefix("past_key_values."),
            input=given,
            output=taken,
            shape=("batch", attention.num_kv_heads, "capacity", attention.head_dim),
            dtype=dtype,
            update="append",
        )
        for given, taken, attention in zip(
            past,
            present,
            [block.attention for block in config.blocks for _ in range(2)],
            strict=True,
        )
    )


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
    delta = bounds.max_abs_delta * max(1.0, measured.max_abs_logit)
    where = measured.first_divergence
    place = f" First at {where.probe}, position {where.position}, {where.phase}." if where else ""
    return (
        f"parity: expected logits within {delta:.3g} of PyTorch's, a mean KL divergence of at "
        f"most {bounds.mean_kl:.3g} and the same most probable tokens, got "
        f"{measured.max_abs_delta:.3g}, {measured.mean_kl:.3g}, {measured.top1_agreement:.2%} "
        f"equal and {measured.non_finite} positions not finite.{place} The bundle was not kept."
    )
