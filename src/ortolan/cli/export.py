"""`ortolan export SOURCE OUT`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortolan.cli.output import Steps, print_json, print_table, size
from ortolan.errors import OrtolanError

if TYPE_CHECKING:  # the runtime is imported when the command runs
    from ortolan.runtime.bundle.manifest import Manifest


class MissingExportError(OrtolanError):
    """The packages of the extra `export` are absent."""

    code = "missing-extra"


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


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="What the graphs are made for.",
)
@click.option(
    "--precision",
    type=click.Choice(["fp32", "fp16", "bf16", "int8", "int4"]),
    default="fp32",
    show_default=True,
    help="Of the weights; cpu has no bf16, cuda no fp32. With int8 and int4, all else is fp32 for "
    "cpu and fp16 for cuda.",
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
    help="portable adds bodies of standard operators, for other tools than onnxruntime.",
)
@click.option(
    "--method",
    type=click.Choice(["rtn", "hqq", "gptq"]),
    help="How int4 and int8 are found. By default gptq for int4 where there is a text to "
    "calibrate on, else hqq; rtn for int8.",
)
@click.option(
    "--group-size",
    type=click.Choice(["32", "64", "128", "256"]),
    help="Values that share a scale; 128 by default, 256 in blocks below a head of 4 bits.",
)
@click.option("--asymmetric", is_flag=True, help="Store a zero point for each group as well.")
@click.option(
    "--head-bits",
    type=click.Choice(["4", "8"]),
    help="Of head and embedding; 4 where a decoder is calibrated to int4, else 8.",
)
@click.option(
    "--exclude", multiple=True, metavar="PATTERN", help="Weights not to round; repeatable."
)
@click.option(
    "--prefill-precision",
    type=click.Choice(["int8"]),
    help="Products of 8-bit integers: for prefill alone with --graphs split, faster for more "
    "memory; or of an encoder.",
)
@click.option(
    "--attention-maps",
    is_flag=True,
    help="Write a graph of what each token attends to, for ortolan attention.",
)
@click.option(
    "--allow-cpu-nodes",
    is_flag=True,
    help="With --device cuda: let the CPU compute what CUDA has no kernel for, slowly.",
)
@click.option("--max-kl", type=float, help="Fail where the mean divergence from PyTorch is larger.")
@click.option("--max-context", type=int, help="Tokens that shall fit; the model's own by default.")
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    help="Text, lines of source TAB target, or images in .npy, to calibrate and prove parity on; "
    "for int8 and int4, calibration.txt, .tsv or .npy in SOURCE by default.",
)
@click.option(
    "--calibration-sequences",
    type=int,
    default=32,
    show_default=True,
    help="Texts of 256 tokens, images, or eight pairs each, that gptq calibrates on.",
)
@click.option("--force", is_flag=True, help="Replace a bundle at OUT.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    source: Path,
    out: Path,
    as_json: bool,
    group_size: str | None,
    head_bits: str | None,
    **options: Any,
) -> None:
    """Make the bundle OUT from the checkpoint folder SOURCE, and prove its parity.

    SOURCE is in Hugging Face format: config.json and safetensors. Nothing is kept at OUT unless
    the bundle computes what PyTorch computes; with bf16, which no CPU computes, that is to be
    shown on the device, by ortolan verify.
    """
    try:
        from ortolan.export.pipeline import export
    except ModuleNotFoundError as error:
        raise MissingExportError(
            f"export: expected the package {error.name}, got none. "
            'Run: pip install "ortolan[export]"'
        ) from error
    from ortolan.runtime import certificate

    steps = Steps()
    numbers: Any = {
        "group_size": None if group_size is None else int(group_size),
        "head_bits": None if head_bits is None else int(head_bits),
    }
    try:
        bundle = export(source, out, progress=steps, **numbers, **options)
    finally:
        steps.close()
    measured = certificate.read(bundle).measured
    unverified = bundle.manifest.unverified
    total = sum(file.size for file in bundle.manifest.files)
    if as_json:
        print_json(
            {
                "bundle": str(bundle.path),
                "bytes": total,
                "unverified": unverified,
                **{name: getattr(measured, name, None) for name in _FIGURES},
            }
        )
        return
    print_table(
        [
            ("bundle", f"{out} ({size(total)}, {bundle.manifest.precision})"),
            *_weights(bundle.manifest),
            (
                "parity",
                f"not verified: {unverified}"
                if measured is None
                else f"{measured.verdict}: {measured.summary}",
            ),
        ]
    )


def _weights(manifest: Manifest) -> list[tuple[str, str]]:
    """How weights of few bits were found: what is the default depends on the checkpoint."""
    counts = Counter((tensor.bits, tensor.method) for tensor in manifest.quantized)
    kinds = [f"{count} in {bits} bits by {method}" for (bits, method), count in counts.items()]
    return [("weights", ", ".join(kinds))] if kinds else []
