"""`ortolan adapter SOURCE OUT --bundle BUNDLE`."""

from pathlib import Path

import click

from ortolan.cli import options
from ortolan.cli.extras import extra
from ortolan.cli.output import print_json, print_table, quality_rows, size
from ortolan.cli.progress import progress

_path = click.Path(path_type=Path)


@click.command()
@click.argument("source", type=options.model_path)
@click.argument("out", type=_path)
@click.option("--bundle", type=_path, required=True, help="Bundle that will use the adapter.")
@click.option(
    "--checkpoint",
    type=options.model_path,
    help="Checkpoint that BUNDLE was exported from. Default: the one that the adapter names.",
)
@click.option("--force", is_flag=True, help="Replace an existing adapter at OUT.")
@options.as_json
def command(
    source: str, out: Path, bundle: Path, checkpoint: str | None, force: bool, as_json: bool
) -> None:
    """Convert the PEFT LoRA adapter SOURCE to the folder OUT, for one bundle.

    SOURCE and the checkpoint are folders, or names on the Hugging Face Hub (`org/name@revision`).

    A model loaded with OUT computes requests with and without the adapter in one batch. OUT is
    written only if the bundle computes with it what PyTorch computes with the merged weights.
    """
    import msgspec

    with extra("export", command="adapter"):
        from ortolan.export.adapter import export_adapter

    with progress("adapter", as_json=as_json) as steps:
        adapter = export_adapter(
            source, out, bundle=bundle, checkpoint=checkpoint, force=force, progress=steps
        )
    manifest = adapter.manifest
    total = sum(file.size for file in manifest.files)
    if as_json:
        fields = msgspec.to_builtins(manifest)
        shown = {name: fields[name] for name in ("bundle", "ranks", "modules", "quality")}
        print_json({"adapter": str(out.absolute()), "bytes": total, **shown})
        return
    print_table(
        [
            ("adapter", f"{out} ({size(total)}, rank {', '.join(map(str, manifest.ranks))})"),
            ("modules", ", ".join(manifest.modules)),
            *quality_rows(manifest.quality),
        ]
    )
