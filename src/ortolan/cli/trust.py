"""`ortolan trust BUNDLE`."""

from pathlib import Path

import click

from ortolan.cli import options


@click.command()
@options.bundle_folder
def command(bundle: Path) -> None:
    """Trust BUNDLE for your user on this machine although it uses custom operators.

    Ortolan loads only operators that it writes itself. A bundle of your own module may use others;
    it opens where it was exported. Elsewhere, it would run kernels that are not tested with hostile
    input. Prints those operators. To undo this, delete the file operators.seal in BUNDLE
    and in the bundles in it.
    """
    from ortolan.runtime import open_bundle
    from ortolan.runtime.bundle.folder import open_parts
    from ortolan.runtime.bundle.trust import trust

    opened = open_bundle(bundle, trust=True)
    bundles = [opened, *open_parts(opened, trust=True).values()]
    custom = sorted({operator for own in bundles for operator in own.manifest.foreign_operators})
    if not custom:
        click.echo("nothing to trust: the bundle uses no custom operators")
        return
    for own in bundles:
        if own.manifest.foreign_operators:
            trust(own.path, own.manifest)
    for operator in custom:
        click.echo(operator)
