"""`ortolan train RECIPE [OUT]`."""

from pathlib import Path

import click

from ortolan.errors import OrtolanError


class MissingTrainError(OrtolanError):
    """The packages of the extra `train` are absent."""

    code = "missing-extra"


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path), required=False)
def command(recipe: Path, out: Path | None) -> None:
    """Train the model of RECIPE and write its checkpoint to OUT, or beside the recipe.

    RECIPE is a TOML file. It names a function in a Python file beside it, which reads the data.
    """
    try:
        import matplotlib  # noqa: F401 - the curve is drawn at the end, too late to find out

        from ortolan.modeling.training.trainer import train
    except ModuleNotFoundError as error:
        raise MissingTrainError(
            f'train: expected the package {error.name}, got none. Run: pip install "ortolan[train]"'
        ) from error
    print(f"checkpoint  {train(recipe, out)}")
