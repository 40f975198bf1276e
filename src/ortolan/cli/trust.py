"""`ortolan trust BUNDLE`."""

from pathlib import Path

import click

from ortolan.cli import options


@click.command()
@options.bundle
def command(bundle: Path) -> None:
    """Let BUNDLE open for you on this machine though it has operators of its author's own.

    Ortolan loads the operators that it writes itself. A module may need others, and a bundle of
    one opens where it was made; elsewhere, kernels that nobody tried on hostile input would run.
    Prints those operators. To undo this, delete the file operators.seal in BUNDLE.
    """
    from ortolan.runtime import open_bundle
    from ortolan.runtime.bundle.trust import trust

    opened = open_bundle(bundle, trust=True)
    foreign = opened.manifest.foreign_operators
    if not foreign:
        click.echo("nothing to trust: it has only operators that ortolan writes")
        return
    trust(opened.path, opened.manifest)
    for form in foreign:
        click.echo(form)
