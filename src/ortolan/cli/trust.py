"""`ortolan trust BUNDLE`."""

from pathlib import Path

import click

from ortolan.cli import options


@click.command()
@options.bundle
def command(bundle: Path) -> None:
    """Trust BUNDLE for your user on this machine although it uses custom operators.

    Ortolan loads only operators that it writes itself. A bundle of your own module may use others;
    it opens where it was exported. Elsewhere, it would run kernels that are not tested with hostile
    input. Prints those operators. To undo this, delete the file operators.seal in BUNDLE.
    """
    from ortolan.runtime import open_bundle
    from ortolan.runtime.bundle.trust import trust

    opened = open_bundle(bundle, trust=True)
    custom = opened.manifest.foreign_operators
    if not custom:
        click.echo("nothing to trust: the bundle uses no custom operators")
        return
    trust(opened.path, opened.manifest)
    for operator in custom:
        click.echo(operator)
