"""`ortolan sign BUNDLE`."""

from pathlib import Path

import click

from ortolan.cli import options
from ortolan.cli.extras import extra


@click.command()
@options.bundle_folder
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    required=True,
    help="Private key in PEM, of an elliptic curve.",
)
@click.option("--password", envvar="ORTOLAN_KEY_PASSWORD", help="Password of the key.")
def command(bundle: Path, key: Path, password: str | None) -> None:
    """Sign BUNDLE with a private key: `ortolan verify --key` checks it with the public one.

    The signature is written to model.sig in BUNDLE, in the format of OpenSSF Model Signing.
    """
    with extra("sign", command="sign"):
        from ortolan.signing import sign

    click.echo(sign(bundle, key, password=password))
