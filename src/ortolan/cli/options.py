"""Arguments and options that several commands have, said once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ortolan.runtime import Decoder, Sampling, Seq2Seq

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
    "temperature": (float, "0 takes the likeliest token."),
    "top_k": (int, "Sample from this many tokens; 0 for all."),
    "top_p": (float, "Sample from the likeliest tokens that reach this probability."),
    "min_p": (float, "Sample from tokens at least this likely, relative to the top."),
    "repetition_penalty": (float, "Above 1: repeat fewer tokens."),
    "presence_penalty": (float, "Above 0: repeat fewer tokens."),
    "frequency_penalty": (float, "The same, for each repetition."),
    "seed": (int, "Makes sampling repeatable."),
}
"""Fields of `ortolan.Sampling`: the type and a line of help."""


@dataclass(frozen=True, slots=True)
class SamplingChoice:
    """What a command line says of sampling.

    Attributes:
        given: options by name.
        from_model: whether the others are those that the model recommends; greedy choice else.

    Raises:
        SamplingError: an option is out of its range.
    """

    given: Mapping[str, Any]
    from_model: bool

    def __post_init__(self) -> None:
        """Refuse what is out of range before a model is loaded."""
        from ortolan.runtime import Sampling

        Sampling(**self.given)

    def of(self, model: "Decoder | Seq2Seq") -> "Sampling | None":
        """The sampling of a model; `None` for greedy choice.

        Raises:
            SamplingError: what the model recommends is broken.
        """
        from ortolan.runtime import Sampling

        base = model.recommended_sampling if self.from_model else Sampling()
        chosen = replace(base, **self.given)
        return None if chosen == Sampling() else chosen


def sampling(*, from_model: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of sampling; the command takes them as one, `sampling: SamplingChoice`.

    Args:
        from_model: whether what the model recommends holds unless it is asked not to.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_sampling(*, model_sampling: bool, **values: Any) -> Any:
            named = {name: values.pop(name) for name in _SAMPLING}
            given = {name: value for name, value in named.items() if value is not None}
            return command(**values, sampling=SamplingChoice(given, model_sampling))

        with_sampling = click.option(
            "--model-sampling/--no-model-sampling",
            default=from_model,
            show_default=True,
            help="Sample as the model recommends, but for the options above.",
        )(with_sampling)
        for name, (kind, text) in reversed(_SAMPLING.items()):
            with_sampling = click.option(f"--{name.replace('_', '-')}", type=kind, help=text)(
                with_sampling
            )
        return with_sampling

    return decorate
