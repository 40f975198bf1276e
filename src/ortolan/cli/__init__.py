"""The command line: one file per command, each imported when it runs.

Commands read arguments, call the library and print. Errors are one line on stderr and exit
status 2; `--debug` shows the traceback.
"""

import os
import sys
from importlib import import_module

import click

from ortolan import __version__
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
    """Run the command line and exit: 0 for success, 1 for a failed check, 2 for an error."""
    debug = "--debug" in sys.argv[1:]
    try:
        status = cli.main(args=_debug_first(sys.argv[1:]), standalone_mode=False)
    except (OrtolanError, click.ClickException) as error:
        if debug:
            raise
        _say(error.format_message() if isinstance(error, click.ClickException) else str(error))
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except BrokenPipeError:
        # The reader has gone, and with it whom to tell; the interpreter would try once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    sys.exit(status if isinstance(status, int) else 0)


def _debug_first(arguments: list[str]) -> list[str]:
    """`--debug` belongs to the group, and may stand anywhere."""
    rest = [argument for argument in arguments if argument != "--debug"]
    return ["--debug", *rest] if len(rest) < len(arguments) else rest


def _say(message: str) -> None:
    print(f"ortolan: {' '.join(message.split())}", file=sys.stderr)
