"""`ortolan chat BUNDLE`."""

import sys
from pathlib import Path

import click

from ortolan.cli import options
from ortolan.cli.chat.commands import run_command
from ortolan.cli.chat.questions import question_reader
from ortolan.cli.chat.session import ChatSession, tell
from ortolan.cli.help import LongCommand
from ortolan.cli.progress import loading
from ortolan.errors import OrtolanError


@click.command(cls=LongCommand)
@options.bundle_folder
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
@click.option(
    "--adapter", type=click.Path(path_type=Path), help="Folder of an adapter to answer with."
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
    adapter: Path | None,
    device: str,
    threads: int | None,
) -> None:
    """Chat with a model, in the format that it was trained on.

    Answers stream to standard output. Ctrl-C stops an answer, Ctrl-D leaves, /help lists commands.
    Questions may also come through a pipe, one per line.
    """
    from ortolan.runtime import Decoder, Sampling, load

    adapters = {} if adapter is None else {options.ADAPTER: adapter}
    with loading("chat"):
        model = load(bundle, Decoder, device=device, threads=threads, adapters=adapters)
    session = ChatSession(
        model=model,
        conversation=model.conversation(system=system),
        sampling=sampling.resolve(model) or Sampling(),
        options={
            "max_new_tokens": max_new_tokens,
            "stop": stop,
            "adapter": options.ADAPTER if adapters else None,
        },
        is_terminal=sys.stdin.isatty(),
    )
    if session.is_terminal:
        tell(f"{bundle.resolve().name}: /help lists commands, Ctrl-D leaves.")
    read = question_reader(keeps_history=history, tell=tell)
    while True:
        try:
            _answer(read(), session)
        except EOFError:
            return
        except (KeyboardInterrupt, OrtolanError) as error:
            if not session.is_terminal:
                raise
            tell(_one_line(error))


def _answer(text: str, session: ChatSession) -> None:
    if text.startswith("/") and "\n" not in text:
        run_command(text, session)
    elif text.strip():
        session.ask(text)


def _one_line(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "\nLeave with /exit or Ctrl-D."
    return f"ortolan: {' '.join(str(error).split())}"
