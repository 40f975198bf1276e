"""`ortolan export-genai BUNDLE OUT`."""

from pathlib import Path

import click

from ortolan.cli import options
from ortolan.cli.extras import extra
from ortolan.cli.models import opened_bundle
from ortolan.cli.output import print_json, print_table, size
from ortolan.cli.progress import progress


@click.command()
@options.bundle
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace such a folder at OUT.")
@options.as_json
def command(bundle: str, out: Path, force: bool, as_json: bool) -> None:
    """Convert BUNDLE to the folder OUT, which onnxruntime-genai loads.

    BUNDLE must be a decoder for the CPU with fused attention in one graph. Before OUT is written,
    the new graph has to compute the same logits as the bundle, bit for bit, for a padded batch.
    Prompts of a batch are padded on the right, as onnxruntime-genai does.
    """
    with extra("export", command="export-genai"):
        from ortolan.export.layouts.genai import convert

    with progress("export-genai", as_json=as_json) as steps:
        opened = opened_bundle(bundle, steps, full_check=True)
        steps("convert", 0, 1)
        folder = convert(opened, out, force=force)
    total = sum(path.stat().st_size for path in folder.iterdir())
    variables = dict(opened.manifest.host.session.environment)
    if as_json:
        print_json({"folder": str(folder), "bytes": total, "environment": variables})
        return
    print_table(
        [
            ("folder", f"{out} ({size(total)}, {opened.manifest.precision})"),
            ("set", " ".join(f"{name}={value}" for name, value in variables.items()) or None),
        ]
    )
