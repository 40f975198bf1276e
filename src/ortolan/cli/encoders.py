"""The commands of encoders: `embed`, `classify`, `fill` and `answer`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import click

from ortolan import runtime
from ortolan.cli import options
from ortolan.cli.inputs import decoded, read_inputs
from ortolan.cli.opening import loaded
from ortolan.cli.output import print_json, print_table


@click.command()
@options.bundle
@click.argument("inputs", nargs=-1, metavar="TEXT...")
@options.images
@click.option(
    "--text",
    "texts",
    multiple=True,
    help="Text, if BUNDLE compares images with texts; repeatable.",
)
@click.option(
    "--prompt", help='Name of a prompt of the model, put before each text; "" for no prompt.'
)
@options.truncate
@options.loading
@options.as_json
def embed_command(
    bundle: str,
    inputs: tuple[str, ...],
    images: tuple[Path, ...],
    texts: tuple[str, ...],
    settings: dict[str, Any],
    as_json: bool,
    **choices: Any,
) -> None:
    """Print one embedding per line: of each TEXT, or image file if BUNDLE reads images.

    With -, each line of standard input is a text.
    """
    if not inputs and not images and not texts:
        raise click.UsageError("Pass a TEXT, or --image or --text.")
    with loaded(bundle, settings, runtime.Encoder) as model:
        items = read_inputs(model.manifest, inputs, images)
        vectors = [*model.embed(items, **choices)] if items else []
        if texts:
            vectors.extend(model.texts.embed([*texts], **choices))
    if not as_json:
        for vector in vectors:
            print(*(f"{value:.6g}" for value in vector))
        return
    output = model.manifest.output
    rows = [
        {"input": item, "embedding": vector.tolist()}
        for item, vector in zip([*items, *texts], vectors, strict=True)
    ]
    print_json(
        {"width": 0 if output is None else output.size, "results": rows, "device": model.device}
    )


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
@options.loading
@options.as_json
def classify_command(
    bundle: str,
    inputs: tuple[str, ...],
    images: tuple[Path, ...],
    top: int | None,
    labels: str | None,
    template: str | None,
    multi_label: bool,
    truncate: bool,
    settings: dict[str, Any],
    as_json: bool,
) -> None:
    """Classify texts, or image files if BUNDLE reads images.

    With -, each line of standard input is a text. Prints probabilities, which add up to 1 or are
    independent per label, or the scores of a regression: see `ortolan inspect`. If BUNDLE labels
    tokens, prints the entities of each text with their characters.
    """
    if labels is None and (multi_label or template is not None):
        raise click.UsageError(
            f"{'--multi-label' if multi_label else '--template'} needs --labels."
        )
    if not inputs and not images:
        raise click.UsageError("Pass a FILE_OR_TEXT, or --image.")
    with loaded(bundle, settings, runtime.Encoder) as model:
        items = read_inputs(model.manifest, inputs, images)
        kind = model.manifest.output_kind
        has_entities = kind.name == "token_labels"
        if has_entities and (top is not None or labels is not None):
            raise click.UsageError(
                "--top and --labels are for labels of whole inputs. Leave them out."
            )
        if has_entities:
            results = model.classify_tokens(items, truncate=truncate)
        elif labels is None:
            results = model.classify(items, truncate=truncate)
        else:
            own = [label.strip() for label in labels.split(",")]
            results = model.classify_as(
                items, own, multi_label=multi_label, template=template, truncate=truncate
            )
    if top is None and labels is None and kind.scores == "softmax":
        top = 1
    if as_json:
        facts = _entity_facts if has_entities else partial(_label_facts, top=top)
        rows = [{"input": item, **facts(own)} for item, own in zip(items, results, strict=True)]
        print_json({"results": rows, "device": model.device})
        return
    for item, result in zip(items, results, strict=True):
        name = " ".join(item.split()) if len(items) > 1 else ""
        if has_entities:
            _print_entities(name, result)
        else:
            _print_labels(name, result, top)


def _label_facts(result: runtime.Classification, top: int | None) -> dict[str, Any]:
    scores = dict(islice(result.scores.items(), top))
    if result.are_probabilities:
        return {"label": result.label, "probability": result.score, "probabilities": scores}
    return {"label": result.label, "score": result.score, "scores": scores}


def _entity_facts(result: runtime.TokenClassification) -> dict[str, Any]:
    return {"entities": [asdict(entity) for entity in result.entities]}


def _print_labels(name: str, result: runtime.Classification, top: int | None) -> None:
    """Print one label per line, highest score first, which has the name of the input."""
    form = "6.1%" if result.are_probabilities else "9.4f"
    rows = [(label, format(score, form)) for label, score in islice(result.scores.items(), top)]
    if name:
        rows[0] = (rows[0][0], f"{rows[0][1]}  {name}")
    print_table(rows)


def _print_entities(name: str, result: runtime.TokenClassification) -> None:
    """Print one entity per line: label, probability, characters and text."""
    if name:
        print(name)
    print_table((own.label, f"{own.score:6.1%}  {_span(own)}") for own in result.entities)


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
@options.loading
@options.as_json
def fill_command(bundle: str, text: str, top: int, settings: dict[str, Any], as_json: bool) -> None:
    """Fill the blanks of TEXT, which BUNDLE writes as [MASK], <mask> or <|mask|>.

    Prints the most probable tokens of each blank with their probabilities.
    """
    with loaded(bundle, settings, runtime.Encoder) as model:
        filling = model.fill(text, top=top)
    if as_json:
        print_json({**asdict(filling), "device": model.device})
        return
    for number, blank in enumerate(filling.blanks):
        if number:
            print()
        print_table((f"{own.score:6.1%}", own.text) for own in blank)


@click.command()
@options.bundle
@click.argument("question")
@click.option(
    "--context",
    type=click.File("rb"),
    required=True,
    metavar="FILE",
    help="UTF-8 text that answers the question; - reads standard input.",
)
@click.option(
    "--allow-none",
    is_flag=True,
    help="Print nothing if that is more probable than any answer, for models trained on it.",
)
@options.loading
@options.as_json
def answer_command(
    bundle: str,
    question: str,
    context: BinaryIO,
    allow_none: bool,
    settings: dict[str, Any],
    as_json: bool,
) -> None:
    """Find the part of a text that answers QUESTION.

    Prints its probability, its characters and its text.
    """
    text = decoded(context.read(), "context")
    with loaded(bundle, settings, runtime.Encoder) as model:
        answer = model.answer(question, text, allow_none=allow_none)
    if as_json:
        print_json({"question": question, **asdict(answer), "device": model.device})
    elif answer.text:
        print_table([(f"{answer.score:6.1%}", _span(answer))])


def _span(found: Any) -> str:
    """The characters of an entity or an answer, and its text."""
    return f"{found.start}-{found.end}  {' '.join(found.text.split())}"
