"""The command line: a module is imported when one of its commands runs.

Commands parse arguments, call the library and print the result. An error is one line on stderr.
Exit status 0: done. 1: verification failed. 2: the command cannot be carried out; the line says
why. 3: a bug in Ortolan. 130: interrupted.
"""

import os
import sys
import traceback
from importlib import import_module

import click

from ortolan import __version__
from ortolan.cli.streams import guarded_streams
from ortolan.cuda_setup import installed_version
from ortolan.distribution import is_runtime_only
from ortolan.errors import OrtolanError, RuntimeOnlyError

COMMANDS = {
    "adapter": "Convert a LoRA adapter for a bundle.",
    "answer": "Find the answer to a question in a text.",
    "attention": "Draw what each token attends to.",
    "bench": "Measure the speed of prefill and decoding.",
    "cache": "List or remove bundles that are kept for the next start.",
    "card": "Write the model card of a repository of bundles.",
    "chat": "Chat with a model.",
    "classify": "Classify texts or images.",
    "doctor": "Show what this machine has, and how to get what is missing.",
    "embed": "Print an embedding of each text or image.",
    "export": "Export a checkpoint to a bundle.",
    "export-genai": "Convert a bundle for onnxruntime-genai.",
    "families": "List the model types that can be exported.",
    "fill": "Fill the blanks of a text.",
    "inspect": "Describe a bundle, or the export of a checkpoint.",
    "pack": "Prepare the weights of a bundle for this processor.",
    "publish": "Publish bundles on the Hugging Face Hub.",
    "run": "Continue a prompt, or translate a text.",
    "serve": "Serve bundles over HTTP to clients of OpenAI's API.",
    "sign": "Sign a bundle with a private key.",
    "train": "Train the model of a recipe.",
    "transcribe": "Write down what is said in a sound.",
    "verify": "Replay the proof of a bundle on this machine.",
}
"""Commands and their line of help."""

_MODULES = {
    **dict.fromkeys(("answer", "classify", "embed", "fill"), "encoders"),
    **dict.fromkeys(("adapter", "export-genai", "pack"), "conversions"),
    **dict.fromkeys(("card", "publish", "sign"), "publishing"),
    **dict.fromkeys(("cache", "doctor"), "machine"),
    **dict.fromkeys(("families", "train"), "checkpoints"),
}
"""Modules of several commands; others have the name of their command."""

_WELCOME = """\
Three commands to try:

  ortolan chat MODEL                      a name on the Hugging Face Hub, a folder or a .gguf file
  ortolan serve MODEL                     OpenAI's API, and a page at http://127.0.0.1:8080
  ortolan export MODEL bundle             make a bundle for other machines, with a precision

`ortolan --help` lists all commands, `ortolan doctor` what this machine lacks."""

_ON_A_DEVICE = """\
Three commands to try:

  ortolan run BUNDLE "Once upon a time"   continue a text; `chat` holds a conversation
  ortolan verify BUNDLE                   prove that this machine computes the trained model
  ortolan bench BUNDLE                    measure its speed

`ortolan --help` lists all commands, `ortolan doctor` what this machine lacks."""

_RUNTIMES = ("onnxruntime", "onnxruntime-gpu")

_BEYOND_THE_RUNTIME = {
    "adapter": "export",
    "export": "export",
    "export-genai": "export",
    "families": "export",
    "train": "train",
}
"""Commands that `ortolan-runtime` does not have, and the extra of `ortolan` that each needs."""


def _available() -> dict[str, str]:
    if not is_runtime_only():
        return COMMANDS
    return {name: text for name, text in COMMANDS.items() if name not in _BEYOND_THE_RUNTIME}


class _Commands(click.Group):
    """A group that imports a command only to run it, so that `ortolan --help` is fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_available())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in _available():
            raise RuntimeOnlyError(f"`ortolan {cmd_name}`", _BEYOND_THE_RUNTIME[cmd_name])
        module = import_module(f"ortolan.cli.{_MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_available().items()))


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        names = (name for name in _RUNTIMES if installed_version(name))
        installed = next((f"{name} {installed_version(name)}" for name in names), "no onnxruntime")
        python = ".".join(map(str, sys.version_info[:3]))
        click.echo(f"ortolan {__version__}, {installed}, Python {python}")
        ctx.exit()


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the versions of Ortolan, onnxruntime and Python, and exit.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Export PyTorch transformers to ONNX and run them anywhere.

    \b
      ortolan export checkpoint/ bundle/
      ortolan run bundle/ "def main("
    """  # noqa: D301 - click needs the \b character
    if ctx.invoked_subcommand is None:
        click.echo(_ON_A_DEVICE if is_runtime_only() else _WELCOME)


def main() -> None:
    """Run the command line and exit."""
    with guarded_streams():
        status = _run()
    sys.exit(status)


def _run() -> int:
    """Run the command line and return the exit status."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    if len(arguments) < len(sys.argv) - 1:  # --debug may be anywhere
        arguments.insert(0, "--debug")
    try:
        status = cli.main(args=arguments, standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        _discard_stdout()  # the reader is gone, so there is nobody to tell
        return 0
    except Exception as error:
        return _report(error)
    return status if isinstance(status, int) else 0


def _report(error: Exception) -> int:
    """Print an error and return its exit status."""
    if "--debug" in sys.argv[1:]:
        traceback.print_exception(error)
    match error:
        case click.ClickException():
            _print_error(error.format_message())
        case OrtolanError():
            _print_error(str(error))
        case OSError():
            _discard_stdout()
            _print_error(f"cannot read or write: {error}.")
        case MemoryError():
            _print_error("out of memory. Close other programs, or use a smaller model.")
        case _:
            _print_error(
                f"{type(error).__name__}: {error}. This is a bug in Ortolan: please report it with "
                "the output of `ortolan --debug ...` and `ortolan doctor`."
            )
            return 3
    return 2


def _discard_stdout() -> None:
    """Drop what is not written yet; the interpreter would try again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(message: str) -> None:
    print(f"ortolan: {' '.join(message.split())}", file=sys.stderr)
