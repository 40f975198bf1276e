"""`ortolan export SOURCE OUT`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortolan.cli.extras import export_packages
from ortolan.cli.output import print_json, print_table, progress, quality_rows, size

if TYPE_CHECKING:  # the runtime is imported when the command runs
    from ortolan.runtime.bundle.manifest import Manifest


_FIGURES = (
    "verdict",
    "max_abs_delta",
    "mean_kl",
    "mean_cosine",
    "top1_agreement",
    "perplexity",
    "reference_perplexity",
)
"""What `--json` says of the certificate; null where nothing was measured."""

_OF_INTEGERS = (
    "method",
    "group_size",
    "asymmetric",
    "head_bits",
    "exclude",
    "calibration_sequences",
    "tune",
)


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Device to run on.",
)
@click.option(
    "--precision",
    type=click.Choice(["fp32", "fp16", "bf16", "int8", "int4", "auto"]),
    default="fp32",
    show_default=True,
    help="Precision of the weights; no bf16 on cpu, no fp32 on cuda. With int8 and int4, all else "
    "is fp32 on cpu and fp16 on cuda. auto chooses 4 or 8 bits for each weight, by --max-kl or "
    "--target-size.",
)
@click.option(
    "--graphs",
    type=click.Choice(["unified", "split"]),
    default="unified",
    show_default=True,
    help="One graph, or one for prefill and one for decoding.",
)
@click.option(
    "--attention",
    type=click.Choice(["fused", "portable"]),
    default="fused",
    show_default=True,
    help="portable adds bodies of standard operators, for tools other than onnxruntime.",
)
@click.option(
    "--method",
    type=click.Choice(["rtn", "hqq", "gptq"]),
    help="How int4 and int8 weights are found. By default gptq for int4, which takes longest; rtn "
    "for int8; and weights that SOURCE stores in as few bits are kept.",
)
@click.option(
    "--group-size",
    type=click.Choice(["32", "64", "128", "256"]),
    help="Values that share a scale; 128 by default, 256 in blocks if the head has 4 bits, 32 in "
    "rows of less than 2048 columns.",
)
@click.option("--asymmetric", is_flag=True, help="Store a zero point for each group as well.")
@click.option(
    "--head-bits",
    type=click.Choice(["4", "8"]),
    help="Bits of the head and the embedding with int4; 4 by default in a decoder by gptq, else 8.",
)
@click.option(
    "--exclude", multiple=True, metavar="PATTERN", help="Weights to keep as floats; repeatable."
)
@click.option(
    "--prefill-precision",
    type=click.Choice(["int8"]),
    help="Multiply 8-bit integers: in prefill only, with --graphs split, which is faster and takes "
    "more memory; or in all of an encoder.",
)
@click.option(
    "--cache",
    type=click.Choice(["float", "int8"]),
    default="float",
    show_default=True,
    help="How a decoder keeps keys and values. int8 takes a quarter of the memory; prompts take "
    "longer.",
)
@click.option(
    "--attention-maps",
    is_flag=True,
    help="Add a graph that shows what each token attends to, for ortolan attention.",
)
@click.option(
    "--allow-cpu-nodes",
    is_flag=True,
    help="With --device cuda, let the CPU compute what CUDA has no kernel for. Slow.",
)
@click.option(
    "--proof",
    type=click.Choice(["quick", "full"]),
    default="quick",
    show_default=True,
    help="Every weight by itself and the model on short texts; or on more and longer ones.",
)
@click.option(
    "--allow-poor", is_flag=True, help="Keep a bundle that is far from the trained model."
)
@click.option(
    "--max-kl",
    type=float,
    help="Fail if the mean KL divergence from PyTorch is larger; with --precision auto, the fewest "
    "bytes that keep it.",
)
@click.option(
    "--target-size",
    type=float,
    metavar="MB",
    help="With --precision auto, the most that the weights take, in millions of bytes.",
)
@click.option(
    "--max-context", type=int, help="Longest context in tokens; the model's own by default."
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    help="Text, lines of source TAB target, or images in .npy, to calibrate and prove parity on. "
    "Default for int8 and int4: calibration.txt, .tsv or .npy in SOURCE; without it, gptq "
    "calibrates on what the model writes itself.",
)
@click.option(
    "--tune",
    is_flag=True,
    help="With int4: train the scales of a decoder end to end as well. Takes minutes for 100M "
    "parameters.",
)
@click.option(
    "--calibration-sequences",
    type=int,
    help="Most texts of 256 tokens, images, or groups of eight pairs that gptq calibrates on; 32 "
    "by default.",
)
@click.option(
    "--accept-unknown",
    multiple=True,
    metavar="KEY",
    help="Ignore a key of config.json of which nothing is known; repeatable.",
)
@click.option(
    "--via",
    type=click.Choice(["family", "transformers"]),
    help="How to read the model: as one of our families, or as transformers computes it. By "
    "default as a family where there is one.",
)
@click.option(
    "--adapter",
    type=click.Path(path_type=Path),
    help="Folder of a LoRA of PEFT to merge into the checkpoint.",
)
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="A tokenizer.json; the checkpoint's own by default.",
)
@click.option("--force", is_flag=True, help="Replace the bundle at OUT.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    source: Path, out: Path, *, as_json: bool, precision: str, force: bool, **given: Any
) -> None:
    """Make the bundle OUT from the checkpoint SOURCE, and prove its parity.

    SOURCE is a folder in Hugging Face format (config.json and safetensors or pytorch_model.bin), a
    folder of the hub's cache, or a GGUF file. Nothing is kept at OUT unless the bundle computes
    what PyTorch computes, and rounded weights are not too far from the trained ones. No CPU
    computes bf16: such a bundle is proved on the device, by ortolan verify.
    """
    with export_packages("export"):
        from ortolan.export.pipeline import export
    import msgspec

    from ortolan.export.options import ExportOptions
    from ortolan.runtime.verification.certificate_files import read_certificate

    keywords = {name: given.pop(name) for name in ("device", "calibration", "max_context")}
    weights = _weights_of(precision, given)
    with progress("export") as steps:
        bundle = export(
            source,
            out,
            precision=weights,
            options=ExportOptions(**given),
            force=force,
            progress=steps,
            warn=lambda text: click.echo(f"ortolan: warning: {text}", err=True),
            **keywords,
        )
    measured = read_certificate(bundle).measured
    unverified = bundle.manifest.unverified
    total = sum(file.size for file in bundle.manifest.files)
    if as_json:
        print_json(
            {
                "bundle": str(bundle.path),
                "bytes": total,
                "unverified": unverified,
                "left_out": list(bundle.manifest.provenance.left_out),
                **{name: getattr(measured, name, None) for name in _FIGURES},
                "weights": msgspec.to_builtins(measured and measured.weights),
                "quality": msgspec.to_builtins(bundle.manifest.quality),
            }
        )
        return
    print_table(
        [
            ("bundle", f"{out} ({size(total)}, {bundle.manifest.precision})"),
            *_weights(bundle.manifest),
            *_left_out(bundle.manifest),
            (
                "device",
                f"not verified: {unverified}" if measured is None else measured.device_summary,
            ),
            *quality_rows(bundle.manifest.quality),
        ]
    )


def _weights_of(precision: str, options: dict[str, Any]) -> Any:
    """The precision with what belongs to it, which is taken out of the options."""
    integers = {name: options.pop(name) for name in _OF_INTEGERS}
    target = options.pop("target_size")
    if precision == "auto":
        return _auto(integers, options.pop("max_kl"), target)
    _refuse_target(precision, target)
    return _precision(precision, integers)


def _auto(given: dict[str, Any], max_kl: float | None, target: float | None) -> Any:
    """Bits that are chosen: what they are chosen by, and the options that go with it."""
    from ortolan.export.errors import OptionError
    from ortolan.export.precision import Auto

    chosen = _given(given)
    for option in ("method", "group_size", "head_bits", "tune"):
        if option in chosen:
            raise OptionError(
                f"precision: expected int8 or int4 with --{option.replace('_', '-')}, got auto, "
                "which chooses that. Leave it out."
            )
    size = None if target is None else int(target * 1e6)
    return Auto(max_kl=max_kl, target_size=size, **chosen)


def _refuse_target(precision: str, target: float | None) -> None:
    from ortolan.export.errors import OptionError

    if target is not None:
        raise OptionError(
            f"precision: expected auto with --target-size, got {precision}. Choose --precision "
            "auto, or leave the size out."
        )


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as Python takes them."""
    return {
        option: int(value) if option in ("group_size", "head_bits") else value
        for option, value in options.items()
        if value not in (None, False, ())
    }


def _precision(name: str, given: dict[str, Any]) -> Any:
    """The value for a name and the options that only weights of integers have."""
    from ortolan.export.errors import OptionError
    from ortolan.export.precision import Int4, Int8

    chosen = _given(given)
    if name == "int4":
        return Int4(**chosen)
    if name == "int8" and "tune" in chosen:
        raise OptionError(
            "tune: expected int4, got int8, which leaves nothing to tune. Leave it out, or choose "
            "--precision int4."
        )
    if name == "int8" and chosen.pop("head_bits", 8) == 8:
        return Int8(**chosen)
    if name == "int8":
        raise OptionError(
            "head bits: expected 8 with int8, got 4. Leave it out, or choose --precision int4."
        )
    if chosen:
        flags = ", ".join(f"--{option.replace('_', '-')}" for option in chosen)
        raise OptionError(
            f"precision: expected int8 or int4 with {flags}, got {name}. "
            "Leave these out, or choose --precision int4."
        )
    return name


def _weights(manifest: Manifest) -> list[tuple[str, str]]:
    """How weights of few bits were found: what is the default depends on the checkpoint."""
    counts = Counter((tensor.bits, tensor.method) for tensor in manifest.quantized)
    kinds = [f"{count} in {bits} bits by {method}" for (bits, method), count in counts.items()]
    rows = [("weights", ", ".join(kinds))] if kinds else []
    origin = manifest.provenance.calibrated_on
    return rows if origin is None else [*rows, ("calibrated", f"on {origin}")]


def _left_out(manifest: Manifest) -> list[tuple[str, str]]:
    """Towers for other inputs than texts, of a checkpoint that has some."""
    names = manifest.provenance.left_out
    return [("left out", ", ".join(names))] if names else []
