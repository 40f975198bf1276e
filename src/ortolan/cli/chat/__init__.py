"""`ortolan chat MODEL`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ortolan import runtime
from ortolan.cli import options
from ortolan.cli.chat.commands import run_command
from ortolan.cli.chat.questions import question_reader
from ortolan.cli.chat.session import ChatSession, tell
from ortolan.cli.help import LongCommand
from ortolan.cli.progress import progress
from ortolan.errors import OrtolanError


@click.command(cls=LongCommand)
@options.model
@click.option("--system", metavar="TEXT", help="System message. Default: the template's.")
@options.max_new_tokens
@options.sampling(from_model=True)
@options.stop
@click.option(
    "--history/--no-history",
    default=True,
    show_default=True,
    help="Keep what you type for later chats.",
)
@click.option("--adapter", type=options.path, help="Folder of an adapter to answer with.")
@options.loading_in_section
@options.checkpoint
def chat_command(
    model: str,
    system: str | None,
    max_new_tokens: int | None,
    sampling: options.SamplingChoice,
    stop: tuple[str, ...],
    history: bool,
    adapter: Path | None,
    settings: dict[str, Any],
    checkpoint: options.CheckpointChoice,
) -> None:
    """Chat with MODEL, in the format that it was trained on.

    MODEL is a bundle or a checkpoint: a folder, a .gguf file, or a name on the Hugging Face Hub. A
    checkpoint is exported once, and kept for the next start (`ortolan cache`).

    Answers stream to standard output. Ctrl-C stops an answer, Ctrl-D leaves, /help lists commands.
    Questions may also come through a pipe, one per line.
    """
    from ortolan.cli.ready import ready, shown_name

    adapters = {} if adapter is None else {options.ADAPTER: adapter}
    with progress("load") as steps:
        folder = ready(model, steps, ("decoder",), settings["device"], checkpoint)
        decoder = runtime.load(folder, runtime.Decoder, adapters=adapters, **settings)
    session = ChatSession(
        model=decoder,
        conversation=decoder.conversation(system=system),
        sampling=sampling.resolve(decoder) or runtime.Sampling(),
        options={
            "max_new_tokens": max_new_tokens,
            "stop": stop,
            "adapter": options.ADAPTER if adapters else None,
        },
        is_terminal=sys.stdin.isatty(),
    )
    if session.is_terminal:
        tell(f"{shown_name(model)}: /help lists commands, Ctrl-D leaves.")
    read = question_reader(keeps_history=history, tell=tell)
    while True:
        try:
            _answer(read(), session)
        except EOFError:
            return
        except KeyboardInterrupt:
            if not session.is_terminal:
                raise
            tell("\nLeave with /exit or Ctrl-D.")
        except OrtolanError as error:
            if not session.is_terminal:
                raise
            tell(f"ortolan: {' '.join(str(error).split())}")


def _answer(text: str, session: ChatSession) -> None:
    if text.startswith("/") and "\n" not in text:
        run_command(text, session)
    elif text.strip():
        session.ask(text)
