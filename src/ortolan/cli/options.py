"""Arguments and options that several commands have, said once."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

bundle = click.argument("bundle", type=click.Path(path_type=Path))

device = click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")

threads = click.option(
    "--threads",
    type=int,
    help="Number of threads: the physical cores by default, 1 for a small translator.",
)

truncate = click.option("--truncate", is_flag=True, help="Cut texts that are too long.")

isolate = click.option(
    "--isolate/--no-isolate",
    default=True,
    show_default=True,
    help="A process of its own loads a bundle first that has not passed verification here.",
)

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")

max_new_tokens = click.option(
    "-n",
    "max_new_tokens",
    type=int,
    help="Maximum number of new tokens; as many as fit by default.",
)

stop = click.option(
    "--stop", multiple=True, metavar="TEXT", help="Stop before this text; repeatable."
)

_SAMPLING = {
    "temperature": (0.0, "0 takes the likeliest token."),
    "top_k": (0, "Sample from this many tokens; 0 for all."),
    "top_p": (1.0, "Sample from the likeliest tokens that reach this probability."),
    "min_p": (0.0, "Sample from tokens at least this likely, relative to the top."),
    "repetition_penalty": (1.0, "Above 1: repeat fewer tokens."),
    "presence_penalty": (0.0, "Above 0: repeat fewer tokens."),
    "frequency_penalty": (0.0, "The same, for each repetition."),
    "seed": (None, "Makes sampling repeatable."),
}
"""Fields of `ortolan.Sampling`: the default and a line of help."""


def sampling(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each field of `Sampling`; the command takes them as one, `sampling`."""

    @wraps(command)
    def with_sampling(**values: Any) -> Any:
        from ortolan.runtime import Sampling

        chosen = Sampling(**{name: values.pop(name) for name in _SAMPLING})
        return command(**values, sampling=None if chosen == Sampling() else chosen)

    for name, (default, text) in reversed(_SAMPLING.items()):
        with_sampling = click.option(
            f"--{name.replace('_', '-')}",
            type=int if default is None else type(default),
            default=default,
            show_default=name == "temperature",
            help=text,
        )(with_sampling)
    return with_sampling
