"""`ortolan attention BUNDLE TEXT -o FILE.png`."""

from pathlib import Path
from typing import Any

import click

from ortolan.cli import options
from ortolan.cli.extras import extra
from ortolan.cli.opening import opened
from ortolan.cli.progress import progress


def _numbers(
    context: click.Context, option: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """Parse `0,2`."""
    if value is None:
        return None
    parts = value.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise click.BadParameter(f"expected numbers such as 0,2, got {value!r}.", context, option)
    return tuple(int(part) for part in parts)


@click.command()
@options.bundle
@click.argument("text")
@click.option("-o", "out", type=options.path, required=True, help="Picture to write.")
@click.option("--target", help="Translation to show. Default: the model's own.")
@click.option("--layers", metavar="N,N", callback=_numbers, help="Layers to draw. Default: all.")
@click.option("--heads", metavar="N,N", callback=_numbers, help="Heads to draw. Default: all.")
@click.option("--mean", is_flag=True, help="Draw the mean of the heads of each layer.")
@click.option(
    "--kind",
    type=click.Choice(["self", "cross", "read", "write"]),
    help="Attention within a text (self), from target to source (cross, the default for an "
    "encoder-decoder), or to the slots of a memory (read and write, the default for these models).",
)
@click.option(
    "--over-image",
    is_flag=True,
    help="Draw on the image what its class token, or each written token, attends to.",
)
@options.threads
@options.isolate
def attention_command(
    bundle: str,
    text: str,
    out: Path,
    target: str | None,
    over_image: bool,
    threads: int | None,
    isolate: bool,
    **choice: Any,
) -> None:
    """Draw what each token of TEXT attends to: a heat map per layer and head.

    Queries are rows, keys are columns. BUNDLE must be exported with --attention-maps. TEXT is a
    file if the bundle reads images or sounds.
    """
    with extra("plot", command="attention"):
        from ortolan.cli.attention_picture import choose, draw, draw_over, gazes
    from ortolan.runtime.attention_maps import attention_maps
    from ortolan.runtime.bundle.image_sources import ImageSource

    with progress("load") as steps:
        model = opened(bundle, steps, isolate=isolate)
        source = model.manifest.source
        if over_image and not isinstance(source, ImageSource):
            raise click.UsageError("--over-image is for bundles that read images. Leave it out.")
        maps = attention_maps(model, text, target=target, threads=threads)
        panels = choose(maps, **choice)
        steps("draw", 0, len(panels))
        if over_image and isinstance(source, ImageSource):
            draw_over(text, source, gazes(panels, source), out)
        else:
            draw(panels, out)
    print(f"{out}  {len(panels)} maps")
