"""`ortolan classify BUNDLE FILE_OR_TEXT...`."""

from itertools import islice
from pathlib import Path

import click

from ortolan.cli import options
from ortolan.cli.output import print_json, print_table
from ortolan.cli.texts import inputs_of


@click.command()
@options.bundle
@click.argument("inputs", nargs=-1, required=True, metavar="FILE_OR_TEXT...")
@click.option(
    "--top", type=click.IntRange(min=1), default=1, show_default=True, help="Labels to print."
)
@options.truncate
@options.device
@options.threads
@options.as_json
def command(
    bundle: Path,
    inputs: tuple[str, ...],
    top: int,
    truncate: bool,
    device: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Classify texts, or image files where BUNDLE takes images.

    With -, each line of standard input is a text.
    """
    from ortolan.runtime import Encoder, load

    model = load(bundle, Encoder, device=device, threads=threads)
    given = inputs_of(model.manifest, inputs)
    found = model.classify(given, truncate=truncate)
    results = [
        {
            "input": text,
            "label": one.label,
            "probability": one.probability,
            "probabilities": dict(islice(one.probabilities.items(), top)),
        }
        for text, one in zip(given, found, strict=True)
    ]
    if as_json:
        print_json({"results": results, "device": model.device})
        return
    for text, one in zip(given, found, strict=True):
        likeliest = list(islice(one.probabilities.items(), top))
        rows = [(label, f"{share:6.1%}") for label, share in likeliest]
        if len(given) > 1:
            # what one input is called, on the line of its likeliest label
            rows[0] = (rows[0][0], f"{rows[0][1]}  {' '.join(text.split())}")
        print_table(rows)
