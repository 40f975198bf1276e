"""`ortolan answer BUNDLE QUESTION --context FILE`."""

from __future__ import annotations

from dataclasses import asdict
from typing import BinaryIO

import click

from ortolan.cli import options
from ortolan.cli.inputs import decoded
from ortolan.cli.models import bundle_of
from ortolan.cli.output import print_json, print_table
from ortolan.cli.progress import loading


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
@options.device
@options.threads
@options.as_json
def command(
    bundle: str,
    question: str,
    context: BinaryIO,
    allow_none: bool,
    device: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Find the part of a text that answers QUESTION.

    Prints its probability, its characters and its text.
    """
    from ortolan.runtime import Encoder, load

    text = decoded(context.read(), "context")
    with loading("answer", as_json=as_json) as steps:
        model = load(bundle_of(bundle, steps), Encoder, device=device, threads=threads)
        steps("answer", 0, 1)
        answer = model.answer(question, text, allow_none=allow_none)
    if as_json:
        print_json({"question": question, **asdict(answer), "device": model.device})
    elif answer.text:
        row = f"{answer.start}-{answer.end}  {' '.join(answer.text.split())}"
        print_table([(f"{answer.score:6.1%}", row)])
