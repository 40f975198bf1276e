"""`ortolan import-genai FOLDER OUT`."""

from pathlib import Path

import click

from ortolan.cli import options
from ortolan.cli.extras import extra
from ortolan.cli.output import print_json, print_table, quality_rows, size
from ortolan.cli.progress import progress

_path = click.Path(path_type=Path)


@click.command()
@click.argument("folder", type=_path)
@click.argument("out", type=_path)
@click.option(
    "--checkpoint",
    type=_path,
    help="The checkpoint that FOLDER was built from. Without it the bundle is not verified.",
)
@click.option("--allow-poor", is_flag=True, help="Keep a bundle that is far from the checkpoint.")
@click.option("--force", is_flag=True, help="Replace an existing bundle at OUT.")
@options.as_json
def command(
    folder: Path,
    out: Path,
    *,
    checkpoint: Path | None,
    allow_poor: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Import FOLDER, built by the model builder of onnxruntime-genai, to the bundle OUT.

    FOLDER holds a decoder with GroupQueryAttention in every layer. With --checkpoint the bundle is
    compared with what PyTorch computes, and gets a certificate for `ortolan verify`. Without it
    the bundle runs, but nothing proves that it computes the trained model.
    """
    with extra("export", command="import-genai"):
        from ortolan.export.layouts.from_genai import import_genai
    from ortolan.runtime.verification.certificate_files import read_certificate

    with progress("import-genai", as_json=as_json) as steps:
        bundle = import_genai(
            folder,
            out,
            checkpoint=checkpoint,
            allow_poor=allow_poor,
            force=force,
            progress=steps,
        )
    manifest = bundle.manifest
    measured = None if manifest.certificate is None else read_certificate(bundle).measured
    total = sum(file.size for file in manifest.files)
    if as_json:
        import msgspec

        print_json(
            {
                "bundle": str(bundle.path),
                "bytes": total,
                "unverified": manifest.unverified,
                "verdict": measured and measured.verdict,
                "quality": msgspec.to_builtins(manifest.quality),
            }
        )
        return
    verdict = measured.device_summary if measured else f"not verified: {manifest.unverified}"
    print_table(
        [
            ("bundle", f"{out} ({size(total)}, {manifest.precision})"),
            ("device", verdict),
            *quality_rows(manifest.quality),
        ]
    )
