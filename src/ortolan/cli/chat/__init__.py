"""`ortolan chat BUNDLE`."""

import sys
from pathlib import Path

import click

from ortolan.cli import options
from ortolan.cli.chat.commands import obey
from ortolan.cli.chat.questions import question_reader
from ortolan.cli.chat.session import ChatSession, tell
from ortolan.cli.help import LongCommand
from ortolan.errors import OrtolanError


@click.command(cls=LongCommand)
@options.bundle
@click.option("--system", metavar="TEXT", help="What the model is to be, in place of its default.")
@options.max_new_tokens
@options.sampling(from_model=True)
@options.stop
@click.option(
    "--history/--no-history",
    default=True,
    show_default=True,
    help="Keep what is typed for later sessions.",
)
@options.device
@options.threads
def command(
    bundle: Path,
    system: str | None,
    max_new_tokens: int | None,
    sampling: options.SamplingChoice,
    stop: tuple[str, ...],
    history: bool,
    device: str,
    threads: int | None,
) -> None:
    """Hold a conversation, in the format that the model was trained on.

    Answers stream to standard output. Ctrl-C stops an answer, Ctrl-D leaves; /help lists what else
    there is. Questions may come through a pipe, one a line.
    """
    from ortolan.runtime import Decoder, Sampling, load

    model = load(bundle, Decoder, device=device, threads=threads)
    session = ChatSession(
        model=model,
        conversation=model.conversation(system=system),
        sampling=sampling.resolve(model) or Sampling(),
        options={"max_new_tokens": max_new_tokens, "stop": stop},
        is_terminal=sys.stdin.isatty(),
    )
    if session.is_terminal:
        tell(f"{bundle.resolve().name}: /help lists commands, Ctrl-D leaves.")
    _talk(session, keeps_history=history)


def _talk(session: ChatSession, *, keeps_history: bool) -> None:
    """Answer questions until there are no more.

    An error ends the program in a pipe. At a terminal it is one line, and the chat goes on.
    """
    read = question_reader(keeps_history=keeps_history, tell=tell)
    while True:
        try:
            text = read()
            if text.startswith("/") and "\n" not in text:
                obey(text, session)
            elif text.strip():
                session.ask(text)
        except EOFError:
            return
        except (KeyboardInterrupt, OrtolanError) as error:
            if not session.is_terminal:
                raise
            tell(_said(error))


def _said(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "\nLeave with /exit or Ctrl-D."
    return f"ortolan: {' '.join(str(error).split())}"
