"""`ortolan classify BUNDLE FILE_OR_TEXT...`."""

from itertools import islice
from pathlib import Path

import click

from ortolan.cli.output import print_json, print_table
from ortolan.cli.texts import texts_of


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("inputs", nargs=-1, required=True, metavar="FILE_OR_TEXT...")
@click.option("--top", type=click.IntRange(min=1), default=1, help="Labels of each; 1 by default.")
@click.option("--truncate", is_flag=True, help="Cut texts that are over the limit.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--threads", type=int, help="The physical cores by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    bundle: Path,
    inputs: tuple[str, ...],
    top: int,
    truncate: bool,
    device: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Name each text, or each image file where BUNDLE takes images.

    Where a text is -, every line of standard input is one.
    """
    from ortolan.runtime import Encoder, load
    from ortolan.runtime.bundle.manifest import ImageSource

    model = load(bundle, Encoder, device=device, threads=threads)
    given = list(inputs) if isinstance(model.manifest.source, ImageSource) else texts_of(inputs)
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
