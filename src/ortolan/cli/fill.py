"""`ortolan fill BUNDLE TEXT`."""

from __future__ import annotations

from dataclasses import asdict

import click

from ortolan.cli import options
from ortolan.cli.models import bundle_of
from ortolan.cli.output import print_json, print_table
from ortolan.cli.progress import loading


@click.command()
@options.bundle
@click.argument("text")
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Number of tokens to print for each blank.",
)
@options.device
@options.threads
@options.as_json
def command(
    bundle: str, text: str, top: int, device: str, threads: int | None, as_json: bool
) -> None:
    """Fill the blanks of TEXT, which BUNDLE writes as [MASK], <mask> or <|mask|>.

    Prints the most probable tokens of each blank with their probabilities.
    """
    from ortolan.runtime import Encoder, load

    with loading("fill", as_json=as_json) as steps:
        model = load(bundle_of(bundle, steps), Encoder, device=device, threads=threads)
        steps("fill", 0, 1)
        filling = model.fill(text, top=top)
    if as_json:
        print_json({**asdict(filling), "device": model.device})
        return
    for number, blank in enumerate(filling.blanks):
        if number:
            print()
        print_table([(f"{own.score:6.1%}", own.text) for own in blank])
