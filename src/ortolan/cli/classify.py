"""`ortolan classify BUNDLE FILE_OR_TEXT...`."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ortolan.cli import options
from ortolan.cli.inputs import read_inputs
from ortolan.cli.output import print_json, print_table

if TYPE_CHECKING:  # the runtime is imported when the command runs
    from ortolan.runtime import Classification


@click.command()
@options.bundle
@click.argument("inputs", nargs=-1, required=True, metavar="FILE_OR_TEXT...")
@click.option(
    "--top",
    type=click.IntRange(min=1),
    help="Labels to print, the highest score first. By default the likeliest where labels exclude "
    "each other, and all labels otherwise.",
)
@options.truncate
@options.device
@options.threads
@options.as_json
def command(
    bundle: Path,
    inputs: tuple[str, ...],
    top: int | None,
    truncate: bool,
    device: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Classify texts, or image files where BUNDLE takes images.

    With -, each line of standard input is a text.

    Prints probabilities, which add up to 1 or are those of each label on its own, or the scores of
    a regression: see `ortolan inspect`.
    """
    from ortolan.runtime import Encoder, load

    model = load(bundle, Encoder, device=device, threads=threads)
    given = read_inputs(model.manifest, inputs)
    found = model.classify(given, truncate=truncate)
    if top is None and model.manifest.output_kind.scores == "softmax":
        top = 1
    results = [{"input": text, **_said(one, top)} for text, one in zip(given, found, strict=True)]
    if as_json:
        print_json({"results": results, "device": model.device})
        return
    for text, one in zip(given, found, strict=True):
        form = "6.1%" if one.are_probabilities else "9.4f"
        rows = [(label, format(score, form)) for label, score in islice(one.scores.items(), top)]
        if len(given) > 1:
            # what one input is called, on the line of its likeliest label
            rows[0] = (rows[0][0], f"{rows[0][1]}  {' '.join(text.split())}")
        print_table(rows)


def _said(one: Classification, top: int | None) -> dict[str, object]:
    """What `--json` says of one input."""
    name, names = ("probability", "probabilities") if one.are_probabilities else ("score", "scores")
    return {"label": one.label, name: one.score, names: dict(islice(one.scores.items(), top))}
