"""`ortolan card BUNDLE...`."""

from pathlib import Path

import click


@click.command()
@click.argument("bundles", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--base-model", metavar="REPO", help="Repository of the checkpoint on the Hub.")
@click.option("--license", "license_id", metavar="ID", help="License, such as apache-2.0.")
@click.option("--repo", metavar="REPO", help="Repository of the bundles, for its commands.")
@click.option("--out", type=click.Path(path_type=Path), help="File to write. Default: stdout.")
@click.option("--force", is_flag=True, help="Replace OUT.")
def command(
    bundles: tuple[Path, ...],
    base_model: str | None,
    license_id: str | None,
    repo: str | None,
    out: Path | None,
    force: bool,
) -> None:
    """Write the model card of a repository with BUNDLES for the Hugging Face Hub.

    A repository has the card as README.md, and a folder for each bundle, so that `hf download
    REPO --include "int4/*"` gets one of them.
    """
    from ortolan import files
    from ortolan.runtime import open_bundle
    from ortolan.runtime.errors import InputError
    from ortolan.runtime.inspect.card import model_card

    card = model_card(
        [open_bundle(bundle) for bundle in bundles],
        base_model=base_model,
        license_id=license_id,
        repository=repo,
    )
    if out is None:
        click.echo(card, nl=False)
        return
    if out.exists() and not force:
        raise InputError(f"{out} exists. Pass --force to replace it.")
    with files.replaced(out) as file:
        file.write(card.encode())
