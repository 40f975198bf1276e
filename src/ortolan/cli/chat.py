"""`ortolan chat BUNDLE`."""

import contextlib
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortolan.cli import options
from ortolan.errors import OrtolanError

if TYPE_CHECKING:
    from ortolan.runtime import Conversation

HELP = """\
/save FILE   keep the conversation in a file
/load FILE   go on with a kept one
/reset       begin again
/help        this list
/exit        leave; so does Ctrl-D
A line that ends with \\ goes on in the next one. Ctrl-C stops an answer."""


@click.command()
@options.bundle
@click.option("--system", metavar="TEXT", help="What the model is to be, in place of its default.")
@options.max_new_tokens
@options.sampling(from_model=True)
@options.stop
@options.device
@options.threads
def command(
    bundle: Path,
    system: str | None,
    max_new_tokens: int | None,
    sampling: options.SamplingChoice,
    stop: tuple[str, ...],
    device: str,
    threads: int | None,
) -> None:
    """Hold a conversation, in the format that the model was trained on.

    Answers stream to standard output. Ctrl-C stops an answer, and leaves where there is none;
    /help lists what else there is. Questions may come through a pipe, one a line.
    """
    from ortolan.runtime import Decoder, load

    model = load(bundle, Decoder, device=device, threads=threads)
    conversation = model.conversation(system=system)
    request = {"max_new_tokens": max_new_tokens, "sampling": sampling.of(model), "stop": stop}
    is_terminal = sys.stdin.isatty()
    if not is_terminal and isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    if is_terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - `input` then edits lines and remembers them
        print(f"{bundle.resolve().name}: /help lists commands, Ctrl-D leaves.", file=sys.stderr)
    while (text := _read(is_terminal=is_terminal)) is not None:
        if text.startswith("/"):
            if text.split()[0] == "/exit":
                break
            _obey(text, conversation, is_terminal=is_terminal)
        elif text.strip():
            _answer(conversation, text, request, is_terminal=is_terminal)


def _read(*, is_terminal: bool) -> str | None:
    """The next question, or None at the end: of the input, or by Ctrl-C at an empty prompt."""
    from ortolan.runtime import InputError

    lines: list[str] = []
    while True:
        try:
            line = input(("> " if not lines else ". ") if is_terminal else "")
        except UnicodeDecodeError as error:
            raise InputError(
                f"standard input: expected UTF-8 text, got byte 0x{error.object[error.start]:02x}. "
                "Convert the input."
            ) from error
        except EOFError:
            if is_terminal:
                print()
            return "\n".join(lines) if lines else None
        except KeyboardInterrupt:
            print()
            if not lines and not _typed():
                return None
            lines = []
            continue
        if not line.endswith("\\"):
            return "\n".join([*lines, line])
        lines.append(line.removesuffix("\\"))


def _typed() -> str:
    """What stood at the prompt when it was interrupted."""
    readline = sys.modules.get("readline")
    return "" if readline is None else str(readline.get_line_buffer())


def _obey(text: str, conversation: "Conversation", *, is_terminal: bool) -> None:
    """Carry out a command; an error of it ends the program only where nobody can correct it."""
    from ortolan.runtime import InputError

    name, _, argument = text.partition(" ")
    path = argument.strip()
    try:
        match name, path:
            case "/save" | "/load", "":
                raise InputError(f"{name}: expected a file, got none. Write {name} FILE.")
            case "/save", _:
                conversation.save(path)
                _tell(f"{len(conversation.messages)} messages saved")
            case "/load", _:
                conversation.load(path)
                _tell(f"{len(conversation.messages)} messages loaded")
            case "/reset", "":
                conversation.reset()
                _tell("a new conversation")
            case "/help", "":
                _tell(HELP)
            case _:
                raise InputError(f"{text.split()[0]}: expected a command, got none. Try /help.")
    except OrtolanError as error:
        _fail(error, is_terminal)


def _answer(
    conversation: "Conversation", text: str, request: dict[str, Any], *, is_terminal: bool
) -> None:
    """Print an answer as it is generated; Ctrl-C ends it and keeps what there is of it."""
    stream = None
    thinks = False
    try:
        stream = conversation.stream(text, **request)
        for piece in stream:
            if bool(piece.reasoning) != thinks:
                thinks = not thinks
                print("(thinking) " if thinks else "\n", end="")
            print(piece.reasoning or piece.content, end="", flush=True)
    except KeyboardInterrupt:
        if stream is not None:
            stream.close()
        print(" [stopped]")
        return
    except OrtolanError as error:
        _fail(error, is_terminal)
        return
    print(flush=True)
    if is_terminal and stream.reply.completion.finish_reason == "length":
        _tell("the answer was cut here: by -n, or at the end of the context (/reset begins again)")


def _tell(text: str) -> None:
    print(text, file=sys.stderr)


def _fail(error: Exception, is_terminal: bool) -> None:
    """Say what is wrong and go on; but in a pipe nobody is there to correct it."""
    if not is_terminal:
        raise error
    _tell(f"ortolan: {' '.join(str(error).split())}")
