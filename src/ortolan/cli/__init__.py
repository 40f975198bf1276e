"""The command line: one file per command, each imported when it runs.

Commands read arguments, call the library and print. An error is one line on stderr; `main` says
which exit status it has, `--debug` shows its traceback.
"""

import os
import sys
import traceback
from importlib import import_module

import click

from ortolan import __version__
from ortolan.cli.streams import guarded_streams
from ortolan.errors import OrtolanError

COMMANDS = {
    "attention": "Draw what each token attends to.",
    "bench": "Measure the speed of prompt processing and generation.",
    "chat": "Hold a conversation.",
    "classify": "Classify texts or images.",
    "doctor": "Show what this machine has, what is missing and how to get it.",
    "embed": "Print a vector for each text.",
    "export": "Make a bundle from a trained checkpoint.",
    "families": "List the model types that can be exported.",
    "inspect": "Describe a bundle, or what would be exported of a checkpoint.",
    "pack": "Prepare the weights of a bundle for this processor.",
    "run": "Continue a prompt, or translate a text.",
    "train": "Train the model of a recipe.",
    "trust": "Let a bundle open that has operators of its author's own.",
    "verify": "Prove that a bundle computes here what PyTorch computed.",
}
"""Every command and its line of help; its module has the same name."""


class _Commands(click.Group):
    """A group that imports a command only to run it: `ortolan --help` loads nothing."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"ortolan.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ortolan")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Make a transformer trained in PyTorch generate on a small machine.

    \b
      ortolan export checkpoint/ bundle/
      ortolan run bundle/ "def main("
    """  # noqa: D301 - click wants the character itself


def main() -> None:
    """Run the command line and exit.

    0: done. 1: a verification failed. 2: what was asked for cannot be done; the line on stderr
    says why, and what to do. 3: a mistake of Ortolan's. 130: interrupted.
    """
    with guarded_streams():
        status = _status()
    sys.exit(status)


def _status() -> int:
    """Run the command line, and return its exit status."""
    try:
        status = cli.main(args=_debug_first(sys.argv[1:]), standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        _let_go_of_stdout()  # the reader has gone, and with it whom to tell
        return 0
    except Exception as error:
        return _failed(error)
    return status if isinstance(status, int) else 0


def _failed(error: Exception) -> int:
    """Say what went wrong, and return the exit status that it has."""
    if "--debug" in sys.argv[1:]:
        traceback.print_exception(error)
    match error:
        case click.ClickException():
            _say(error.format_message())
        case OrtolanError():
            _say(str(error))
        case OSError():
            _let_go_of_stdout()
            _say(f"expected to read and write what was asked for, got: {error}.")
        case MemoryError():
            _say("expected enough memory, got none. Close other programs, or take a smaller model.")
        case _:
            kind = type(error).__name__
            _say(
                f"{kind}: {error}. This is a mistake of Ortolan's: please report it, with what "
                "`ortolan --debug ...` prints and what `ortolan doctor` says."
            )
            return 3
    return 2


def _let_go_of_stdout() -> None:
    """What is not written yet never will be; the interpreter would try once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _debug_first(arguments: list[str]) -> list[str]:
    """`--debug` belongs to the group, and may stand anywhere."""
    rest = [argument for argument in arguments if argument != "--debug"]
    return ["--debug", *rest] if len(rest) < len(arguments) else rest


def _say(message: str) -> None:
    print(f"ortolan: {' '.join(message.split())}", file=sys.stderr)
