"""Commands that make something of a bundle: `adapter`, `export-genai` and `pack`."""

from pathlib import Path

import click

from ortolan.cli import options
from ortolan.cli.extras import extra
from ortolan.cli.opening import opened
from ortolan.cli.output import print_json, print_table, quality_rows, size, witness_row
from ortolan.cli.progress import progress


@click.command()
@click.argument("source", type=options.model_path)
@click.argument("out", type=options.path)
@click.option(
    "--bundle", type=options.path, required=True, help="Bundle that will use the adapter."
)
@click.option(
    "--checkpoint",
    type=options.model_path,
    help="Checkpoint that BUNDLE was exported from. Default: the one that the adapter names.",
)
@click.option("--force", is_flag=True, help="Replace an existing adapter at OUT.")
@click.option(
    "--witness/--no-witness",
    default=True,
    help="Ask PEFT, where it is installed, what it computes, and reject an adapter that computes "
    "something else.",
)
@options.as_json
def adapter_command(
    source: str,
    out: Path,
    bundle: Path,
    checkpoint: str | None,
    force: bool,
    witness: bool,
    as_json: bool,
) -> None:
    """Convert the PEFT LoRA adapter SOURCE to the folder OUT, for one bundle.

    SOURCE and the checkpoint are folders, or names on the Hugging Face Hub (`org/name@revision`).

    A model loaded with OUT computes requests with and without the adapter in one batch. OUT is
    written only if the bundle computes with it what PyTorch computes with the merged weights.
    """
    import msgspec

    with extra("export", command="adapter"):
        from ortolan.export.adapter import export_adapter

    with progress() as steps:
        adapter = export_adapter(
            source,
            out,
            bundle=bundle,
            checkpoint=checkpoint,
            force=force,
            witness=witness,
            progress=steps,
        )
    manifest = adapter.manifest
    total = sum(file.size for file in manifest.files)
    if as_json:
        fields = msgspec.to_builtins(manifest)
        names = ("bundle", "ranks", "modules", "quality", "witness")
        shown = {name: fields[name] for name in names}
        print_json({"adapter": str(out.absolute()), "bytes": total, **shown})
        return
    print_table(
        [
            ("adapter", f"{out} ({size(total)}, rank {', '.join(map(str, manifest.ranks))})"),
            ("modules", ", ".join(manifest.modules)),
            *quality_rows(manifest.quality),
            witness_row(manifest.witness),
        ]
    )


@click.command()
@options.bundle
@click.argument("out", type=options.path)
@click.option("--force", is_flag=True, help="Replace such a folder at OUT.")
@options.isolate
@options.as_json
def export_genai_command(bundle: str, out: Path, force: bool, isolate: bool, as_json: bool) -> None:
    """Convert BUNDLE to the folder OUT, which onnxruntime-genai loads.

    BUNDLE must be a decoder for the CPU with fused attention in one graph. Before OUT is written,
    the new graph has to compute the same logits as the bundle, bit for bit, for a padded batch.
    Prompts of a batch are padded on the right, as onnxruntime-genai does.
    """
    with extra("export", command="export-genai"):
        from ortolan.export.layouts.genai import convert

    with progress() as steps:
        source = opened(bundle, steps, isolate=isolate, full_check=True)
        steps("convert", 0, 1)
        folder = convert(source, out, force=force)
    total = sum(path.stat().st_size for path in folder.iterdir())
    variables = dict(source.manifest.host.session.environment)
    if as_json:
        print_json({"folder": str(folder), "bytes": total, "environment": variables})
        return
    print_table(
        [
            ("folder", f"{out} ({size(total)}, {source.manifest.precision})"),
            ("set", " ".join(f"{name}={value}" for name, value in variables.items()) or None),
        ]
    )


@click.command()
@options.bundle
@options.isolate
@options.as_json
def pack_command(bundle: str, isolate: bool, as_json: bool) -> None:
    """Prepare the weights of BUNDLE for this processor, to load it faster and in less memory.

    onnxruntime rearranges weights for the processor whenever it loads a bundle. `pack` does it
    once, into a folder in BUNDLE about as large as the weights, which all processes share. The
    folder is used only by this user, on this machine, with this version of onnxruntime. Delete it
    to undo.
    """
    import msgspec

    from ortolan.runtime.pack.write import pack

    with progress() as steps:
        source = opened(bundle, steps, isolate=isolate)
        steps("weights", 0, 1)
        report = pack(source)
    if as_json:
        print_json(msgspec.to_builtins(report))
        return
    print_table(
        [
            ("packed", f"{report.weights} weights, {report.folder}"),
            ("on disk", f"{size(report.bytes)}, {report.share:.2f} of the bundle's weights"),
            ("load time", f"{report.load_after_s:.2f} s (before: {report.load_before_s:.2f} s)"),
        ]
    )
