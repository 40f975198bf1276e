"""`ortolan classify BUNDLE FILE_OR_TEXT...`."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ortolan.cli import options
from ortolan.cli.inputs import read_inputs
from ortolan.cli.models import bundle_of
from ortolan.cli.output import print_json, print_table
from ortolan.cli.progress import loading

if TYPE_CHECKING:  # the runtime is imported when the command runs
    from ortolan.runtime import Classification, TokenClassification


@click.command()
@options.bundle
@click.argument("inputs", nargs=-1, metavar="FILE_OR_TEXT...")
@options.images
@click.option(
    "--top",
    type=click.IntRange(min=1),
    help="Number of labels to print, highest score first. Default: 1 if labels exclude each other, "
    "else all.",
)
@click.option(
    "--labels",
    metavar="LABEL,LABEL",
    help="Labels to choose from, if BUNDLE was trained on entailment, or on images and texts.",
)
@click.option(
    "--template",
    metavar="TEXT",
    help="With --labels: sentence about an input, with {} for the label.",
)
@click.option(
    "--multi-label",
    is_flag=True,
    help="With --labels: score each label independently. By default, the scores add up to 1.",
)
@options.truncate
@options.device
@options.threads
@options.as_json
def command(
    bundle: str,
    inputs: tuple[str, ...],
    images: tuple[Path, ...],
    top: int | None,
    labels: str | None,
    template: str | None,
    multi_label: bool,
    truncate: bool,
    device: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Classify texts, or image files if BUNDLE reads images.

    With -, each line of standard input is a text. Prints probabilities, which add up to 1 or are
    independent per label, or the scores of a regression: see `ortolan inspect`. If BUNDLE labels
    tokens, prints the entities of each text with their characters.
    """
    from ortolan.runtime import Encoder, load

    if labels is None and (multi_label or template is not None):
        raise click.UsageError(
            f"{'--multi-label' if multi_label else '--template'} needs --labels."
        )
    if not inputs and not images:
        raise click.UsageError("Pass a FILE_OR_TEXT, or --image.")
    with loading("classify", as_json=as_json) as steps:
        model = load(bundle_of(bundle, steps), Encoder, device=device, threads=threads)
        items = read_inputs(model.manifest, inputs, images)
        steps("classify", 0, len(items))
        kind = model.manifest.output_kind
        if kind.name == "token_labels":
            if top is not None or labels is not None:
                raise click.UsageError(
                    "--top and --labels are for labels of whole inputs. Leave them out."
                )
            entities = model.classify_tokens(items, truncate=truncate)
        elif labels is not None:
            own = [label.strip() for label in labels.split(",")]
            results = model.classify_as(
                items, own, multi_label=multi_label, template=template, truncate=truncate
            )
        else:
            results = model.classify(items, truncate=truncate)
    if kind.name == "token_labels":
        _print_entities(items, entities, device=model.device, as_json=as_json)
        return
    if top is None and labels is None and kind.scores == "softmax":
        top = 1
    if as_json:
        rows = [
            {"input": item, **_json_row(r, top)} for item, r in zip(items, results, strict=True)
        ]
        print_json({"results": rows, "device": model.device})
        return
    _print_scores(items, results, top)


def _print_scores(items: list[str], results: list[Classification], top: int | None) -> None:
    """Print one label per line, highest score first."""
    for item, result in zip(items, results, strict=True):
        form = "6.1%" if result.are_probabilities else "9.4f"
        table = [(label, format(s, form)) for label, s in islice(result.scores.items(), top)]
        if len(items) > 1:  # name the input on the line of its likeliest label
            table[0] = (table[0][0], f"{table[0][1]}  {' '.join(item.split())}")
        print_table(table)


def _print_entities(
    texts: list[str], results: list[TokenClassification], *, device: str, as_json: bool
) -> None:
    """Print one entity per line: label, probability, characters and text."""
    if as_json:
        rows = [
            {"input": text, "entities": [asdict(entity) for entity in result.entities]}
            for text, result in zip(texts, results, strict=True)
        ]
        print_json({"results": rows, "device": device})
        return
    for text, result in zip(texts, results, strict=True):
        if len(texts) > 1:
            print(" ".join(text.split()))
        print_table(
            [
                (entity.label, f"{entity.score:6.1%}  {entity.start}-{entity.end}  {entity.text}")
                for entity in result.entities
            ]
        )


def _json_row(result: Classification, top: int | None) -> dict[str, object]:
    scores = dict(islice(result.scores.items(), top))
    if result.are_probabilities:
        return {"label": result.label, "probability": result.score, "probabilities": scores}
    return {"label": result.label, "score": result.score, "scores": scores}
