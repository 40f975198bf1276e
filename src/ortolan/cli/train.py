"""`ortolan train RECIPE [OUT]`."""

from pathlib import Path

import click

from ortolan.cli.extras import extra


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path), required=False)
def command(recipe: Path, out: Path | None) -> None:
    """Train the model of RECIPE and write its checkpoint to OUT, or next to the recipe.

    RECIPE is a TOML file. It names a function, in a Python file next to it, that reads the data.
    """
    with extra("train", command="train"):
        import matplotlib  # noqa: F401 - needed only when training ends; fail now instead

        from ortolan.modeling.training.trainer import train
    print(f"checkpoint  {train(recipe, out)}")
