"""`ortolan pack BUNDLE`."""

import click

from ortolan.cli import options
from ortolan.cli.models import opened_bundle
from ortolan.cli.output import print_json, print_table, size
from ortolan.cli.progress import progress


@click.command()
@options.bundle
@options.as_json
def command(bundle: str, as_json: bool) -> None:
    """Prepare the weights of BUNDLE for this processor, to load it faster and in less memory.

    onnxruntime rearranges weights for the processor whenever it loads a bundle. `pack` does it
    once, into a folder in BUNDLE about as large as the weights, which all processes share. The
    folder is used only by this user, on this machine, with this version of onnxruntime. Delete it
    to undo.
    """
    import msgspec

    from ortolan.runtime.pack.write import pack

    with progress("pack", as_json=as_json) as steps:
        opened = opened_bundle(bundle, steps)
        steps("weights", 0, 1)
        report = pack(opened)
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
