"""`ortolan card BUNDLE...`."""

from pathlib import Path

import click

from ortolan.cli import options


@click.command()
@click.argument("bundles", type=click.Path(path_type=Path), nargs=-1, required=True)
@options.base_model
@options.license_id
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

    A repository has the card as README.md, and a folder for each bundle, such as int4, so that
    REPO:int4 is the name of one. `ortolan publish` does all of that.
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
