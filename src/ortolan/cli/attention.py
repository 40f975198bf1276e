"""`ortolan attention BUNDLE TEXT -o FILE.png`."""

from pathlib import Path

import click

from ortolan.cli import options
from ortolan.cli.extras import extra


def _numbers(
    context: click.Context, option: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """`0,2` as `(0, 2)`."""
    if value is None:
        return None
    parts = value.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise click.BadParameter(f"expected numbers such as 0,2, got {value!r}.", context, option)
    return tuple(int(part) for part in parts)


@click.command()
@options.bundle
@click.argument("text")
@click.option(
    "-o", "out", type=click.Path(path_type=Path), required=True, help="The picture to write."
)
@click.option("--target", help="The translation to look at; the model's own by default.")
@click.option("--layers", callback=_numbers, help="Such as 0,2; all by default.")
@click.option("--heads", callback=_numbers, help="Such as 0,1; all by default.")
@click.option("--mean", is_flag=True, help="One map per layer, the mean of its heads.")
@click.option(
    "--kind",
    type=click.Choice(["self", "cross", "read", "write"]),
    help="self: among the tokens of a text; cross: from target to source, the default where there "
    "is one; read, write: the slots of a memory, both by default.",
)
@options.threads
def command(
    bundle: Path,
    text: str,
    out: Path,
    target: str | None,
    layers: tuple[int, ...] | None,
    heads: tuple[int, ...] | None,
    mean: bool,
    kind: str | None,
    threads: int | None,
) -> None:
    """Draw what each token of TEXT attends to: a heat map for each layer and head.

    Queries are rows and keys are columns. BUNDLE was exported with --attention-maps; TEXT is an
    image file where it takes images.
    """
    with extra("plot", command="attention"):
        from ortolan.cli.attention_picture import choose, draw
    from ortolan.runtime.attention_maps import attention_maps

    found = attention_maps(bundle, text, target=target, threads=threads)
    panels = choose(found, kind=kind, layers=layers, heads=heads, mean=mean)
    draw(panels, out)
    print(f"{out}  {len(panels)} maps")
