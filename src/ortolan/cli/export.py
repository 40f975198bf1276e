"""`ortolan export SOURCE OUT`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from ortolan import runtime
from ortolan.cli import options
from ortolan.cli.extras import extra
from ortolan.cli.help import LongCommand, section
from ortolan.cli.output import print_json, print_table, quality_rows, size, witness_row
from ortolan.cli.progress import progress
from ortolan.export import options as choices
from ortolan.export.errors import OptionError

if TYPE_CHECKING:  # the runtime is imported when the command runs
    from ortolan.runtime.bundle.manifest import Manifest
    from ortolan.runtime.verification.report import Report

_FIGURES = (
    "verdict",
    "max_abs_delta",
    "mean_kl",
    "mean_cosine",
    "top1_agreement",
    "perplexity",
    "reference_perplexity",
)
"""Fields of the certificate that `--json` prints; null where they were not measured."""

_PRECISIONS = {"int8": choices.Int8, "int4": choices.Int4, "auto": choices.Auto}

# Options that belong to a precision; `--max-kl` also is an option of the export
_OF_PRECISION = frozenset(field.name for kind in _PRECISIONS.values() for field in fields(kind))

_low_bit = section("Low-bit weights")
_graph = section("Graphs")
_proof = section("Proof")
_reading = section("Reading the checkpoint")


def _choice(literal: Any) -> click.Choice[str]:
    return click.Choice([str(value) for value in get_args(literal)])


@click.command(cls=LongCommand)
@click.argument("source", type=options.model_path)
@click.argument("out", type=options.path)
@click.option(
    "--precision",
    type=click.Choice([*get_args(choices.PrecisionName), "auto"]),
    help="Precision of the weights. auto chooses 4 or 8 bits for each weight, within --max-kl or "
    "--target-size. fp32 runs on cpu only, bf16 on cuda only. Default: fp32; a quantized SOURCE "
    "keeps its 4-bit and 8-bit codes, and its other weights get 8 bits.",
)
@click.option(
    "--device",
    type=_choice(choices.Device),
    default="cpu",
    show_default=True,
    help="Device that the bundle runs on.",
)
@click.option(
    "--max-context", type=int, help="Longest context in tokens. Default: the model's limit."
)
@click.option(
    "--calibration",
    type=options.path,
    help="Text, source TAB target lines, or images in .npy, to calibrate and measure on. Default "
    "for int8 and int4: calibration.txt, .tsv or .npy in SOURCE, else text that the model writes.",
)
@click.option(
    "--max-kl",
    type=float,
    help="Fail if the mean KL divergence from PyTorch is larger. With auto: the smallest bundle "
    "within this bound.",
)
@click.option(
    "--target-size",
    type=float,
    metavar="MB",
    help="With auto: the most accurate bundle within this size, in millions of bytes.",
)
@click.option(
    "--effort",
    type=_choice(choices.Effort),
    help="Time to spend on low-bit weights: quick rounds each weight alone, normal calibrates "
    "int4, best calibrates on more data and trains the scales. Default: normal.",
)
@click.option(
    "--adapter",
    type=options.model_path,
    help="PEFT LoRA adapter to merge: its folder, or its name on the Hugging Face Hub.",
)
@click.option("--force", is_flag=True, help="Replace an existing bundle at OUT.")
@options.as_json
@_low_bit(
    "--method",
    type=_choice(choices.Method),
    help="Rounding method. Default: by --effort. Weights that SOURCE stores in low-bit form are "
    "kept unless a method is given.",
)
@_low_bit(
    "--group-size",
    type=_choice(choices.GroupSize),
    help="Number of values that share a scale. Default: 128; 256 in blocks if the head has 4 "
    "bits; 32 for rows under 2048 columns.",
)
@_low_bit("--asymmetric", is_flag=True, help="Store a zero point per group.")
@_low_bit(
    "--head-bits",
    type=_choice(choices.HeadBits),
    help="Bits of the head and the embedding with int4. Default: 4 for a decoder with gptq, "
    "else 8.",
)
@_low_bit(
    "--exclude", multiple=True, metavar="PATTERN", help="Keep these weights as floats; repeatable."
)
@_low_bit(
    "--calibration-sequences",
    type=int,
    help="Maximum number of calibration samples for gptq: texts of 256 tokens, images, or groups "
    "of eight pairs. Default: by --effort.",
)
@_graph(
    "--graphs",
    type=_choice(choices.Graphs),
    default="unified",
    show_default=True,
    help="One graph, or separate graphs for prefill and decoding.",
)
@_graph(
    "--layout",
    type=click.Choice(["bundle", "genai"]),
    default="bundle",
    show_default=True,
    help="Layout of OUT: a bundle, or a decoder's folder for onnxruntime-genai.",
)
@_graph(
    "--attention",
    type=_choice(choices.Attention),
    default="fused",
    show_default=True,
    help="portable adds a body of standard operators, for tools other than onnxruntime.",
)
@_graph(
    "--prefill-precision",
    type=_choice(choices.PrefillPrecision),
    help="int8 multiplies 8-bit integers in a decoder's prefill (with --graphs split), which is "
    "faster and needs more memory, or throughout an encoder. Default: int8 for --precision int4 "
    "with --graphs split on the CPU, else float.",
)
@_graph(
    "--cache",
    type=_choice(choices.Cache),
    default="float",
    show_default=True,
    help="Format of a decoder's KV cache. int8 needs a quarter of the memory; prefill is slower.",
)
@_graph("--attention-maps", is_flag=True, help="Add the graph that `ortolan attention` needs.")
@_graph(
    "--mtp",
    is_flag=True,
    help="Add the head of a DeepSeek V3 or GLM 4.5 checkpoint that predicts further tokens, for "
    "`ortolan run --draft mtp`.",
)
@_graph(
    "--allow-cpu-nodes",
    is_flag=True,
    help="With --device cuda, run nodes without a CUDA kernel on the CPU. Slow.",
)
@_proof(
    "--proof",
    type=_choice(choices.Proof),
    default="quick",
    show_default=True,
    help="quick checks every weight, and the model on short texts; full adds more and longer "
    "texts.",
)
@_proof("--allow-poor", is_flag=True, help="Keep a bundle that is far from the trained model.")
@_proof(
    "--witness/--no-witness",
    default=True,
    help="Ask transformers, where it is installed, what it makes of the same files, and reject a "
    "bundle that answers otherwise.",
)
@_proof(
    "--accept-difference",
    type=_choice(choices.WitnessTopic),
    multiple=True,
    help="Keep a bundle that answers otherwise than transformers on this topic; repeatable.",
)
@_reading("--revision", metavar="REV", help="Branch, tag or commit of a name on the Hub.")
@_reading("--tokenizer", type=options.path, help="A tokenizer.json. Default: the checkpoint's own.")
@_reading(
    "--text-only",
    is_flag=True,
    help="Leave out the encoder of the images that a language model reads.",
)
@_reading(
    "--via",
    type=_choice(choices.Via),
    help="Read the model as a supported family, or as transformers computes it. Default: as a "
    "family if there is one.",
)
@_reading(
    "--accept-unknown",
    multiple=True,
    metavar="KEY",
    help="Ignore an unknown key of config.json; repeatable.",
)
def export_command(
    source: str,
    out: Path,
    *,
    revision: str | None,
    as_json: bool,
    precision: str | None,
    layout: str,
    force: bool,
    **values: Any,
) -> None:
    """Export the checkpoint SOURCE to the bundle OUT and prove its parity.

    SOURCE is a folder in Hugging Face format (config.json with safetensors or
    pytorch_model.bin), a GGUF file, or a name on the Hugging Face Hub: org/name, org/name@revision,
    or org/name:Q4_K_M for one of several GGUF files. OUT is written only if
    the bundle computes what PyTorch computes and rounded weights stay close to the trained ones.
    A bf16 bundle is proved on its device, by `ortolan verify`.
    """
    with extra("export", command="export"):
        from ortolan.export.layouts.genai import through_bundle
        from ortolan.export.pipeline import export
    from ortolan.runtime.verification.certificate_files import read_certificate

    weights = _precision(precision, values)
    keywords = {name: values.pop(name) for name in ("device", "calibration", "max_context")}
    settings = choices.ExportOptions(**values)
    is_genai = layout == "genai"
    place: AbstractContextManager[Path] = nullcontext(out)
    if is_genai:
        place = through_bundle(out, device=keywords["device"], options=settings, force=force)
    with _interruptible(out), progress() as steps, place as folder:
        bundle = export(
            source,
            folder,
            precision=weights,
            options=settings,
            revision=revision,
            force=force,
            progress=steps,
            warn=lambda text: click.echo(f"ortolan: warning: {text}", err=True),
            **keywords,
        )
        measured = read_certificate(bundle).measured
    _report(bundle.manifest, measured, out, is_genai, as_json)


@contextmanager
def _interruptible(out: Path) -> Iterator[None]:
    """Say at an interruption how to continue, where some work is kept."""
    from ortolan.export.unfinished import finished, folder_of

    try:
        yield
    except KeyboardInterrupt:
        count = sum(finished(work) for work in folder_of(out).glob("*"))
        if count:
            click.echo(
                f"ortolan: interrupted with {count} weights finished. The same command continues.",
                err=True,
            )
        raise


def _report(
    manifest: Manifest, measured: Report | None, out: Path, is_genai: bool, as_json: bool
) -> None:
    """Print what was made: a table, or one JSON object."""
    import msgspec

    unverified, origin = manifest.unverified, manifest.provenance
    sizes = [file.size for file in manifest.files]
    total = sum(path.stat().st_size for path in out.iterdir()) if is_genai else sum(sizes)
    if as_json:
        print_json(
            {
                "bundle": str(out if is_genai else out.absolute()),
                "bytes": total,
                "unverified": unverified,
                "left_out": list(origin.left_out),
                **{name: getattr(measured, name, None) for name in _FIGURES},
                "weights": msgspec.to_builtins(measured and measured.weights),
                "quality": msgspec.to_builtins(manifest.quality),
                "witness": msgspec.to_builtins(manifest.witness),
            }
        )
        return
    folders = {name: out / folder for name, (folder, _) in manifest.parts.items()}
    words = manifest.features
    print_table(
        [
            ("folder" if is_genai else "bundle", f"{out} ({size(total)}, {manifest.precision})"),
            ("weights", _weights(manifest)),
            (manifest.media, _encoder(folders["media"], words.words) if words else None),
            ("texts", _encoder(folders["texts"]) if manifest.texts else None),
            ("calibrated", f"on {origin.calibrated_on}" if origin.calibrated_on else None),
            ("left out", ", ".join(origin.left_out) or None),
            ("device", measured.device_summary if measured else f"not verified: {unverified}"),
            *quality_rows(manifest.quality),
            witness_row(manifest.witness),
        ]
    )


def _encoder(folder: Path, *more: str) -> str:
    """Describe an encoder in a bundle: its input and its size."""
    part = runtime.open_bundle(folder).manifest
    total = sum(file.size for file in part.files)
    return f"{', '.join((part.takes, *more))} ({size(total)})"


def _precision(name: str | None, values: dict[str, Any]) -> choices.Precision | None:
    """Take the options of the precision out of `values`; None for the default precision."""
    is_auto = name == "auto"
    own = {key: values.pop(key) for key in _OF_PRECISION if key != "max_kl" or is_auto}
    own = {k: v for k, v in own.items() if v is not None and v is not False and v != ()}
    for key in {"group_size", "head_bits"} & own.keys():
        own[key] = int(own[key])
    if name == "int8" and own.get("head_bits") == 8:
        del own["head_bits"]  # the only value that int8 has
    kind = None if name is None else _PRECISIONS.get(name)
    allowed = {field.name for field in fields(kind)} if kind else set()
    if wrong := sorted(own.keys() - allowed):
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in wrong)
        uses = "auto" if wrong == ["target_size"] else "int4"
        if name is None:
            raise OptionError(f"{flags} needs a precision. Add --precision {uses}.")
        raise OptionError(f"{flags} cannot be used with --precision {name}. Use {uses}.")
    if "target_size" in own:
        own["target_size"] = int(own["target_size"] * 1e6)
    return name if kind is None else kind(**own)  # type: ignore[return-value]


def _weights(manifest: Manifest) -> str | None:
    """How low-bit weights were made; the default depends on the checkpoint."""
    counts = Counter((tensor.bits, tensor.method) for tensor in manifest.quantized)
    kinds = [f"{count} in {bits} bits by {method}" for (bits, method), count in counts.items()]
    return ", ".join(kinds) or None
