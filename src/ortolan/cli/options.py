"""Arguments and options that several commands share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortolan.cli.help import section

if TYPE_CHECKING:
    from ortolan.runtime import Decoder, Sampling, Seq2Seq

model_path = click.Path(path_type=str)
"""Type of a path, or of a name on the Hugging Face Hub."""

bundle = click.argument("bundle", type=model_path)
"""A bundle: its folder, or its name on the Hugging Face Hub; see `ortolan.cli.models`."""

bundle_folder = click.argument("bundle", type=click.Path(path_type=Path))
"""A bundle on this machine, for commands that change or convert it."""

model = click.argument("model", type=model_path)
"""A bundle or a checkpoint: a path, or a name on the Hub; see `ortolan.cli.ready`."""

revision = click.option(
    "--revision", metavar="REV", help="Branch, tag or commit of a name on the Hugging Face Hub."
)

base_model = click.option(
    "--base-model",
    metavar="REPO",
    help="Repository of the checkpoint on the Hub. Default: the one it was fetched from.",
)

license_id = click.option(
    "--license", "license_id", metavar="ID", help="License, such as apache-2.0."
)

# Precisions that `chat`, `run` and `serve` export a checkpoint to
PRECISIONS = ("fp32", "fp16", "int8", "int4")

_of_checkpoint = section("Checkpoints and names")


@dataclass(frozen=True, slots=True)
class CheckpointChoice:
    """Options of a command line for checkpoints and names; `None` where they are left out."""

    precision: str | None
    revision: str | None


def checkpoint(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--precision` and `--revision`; the command receives a `CheckpointChoice`."""

    @wraps(command)
    def with_choice(*, precision: str | None, revision: str | None, **values: Any) -> Any:
        return command(**values, checkpoint=CheckpointChoice(precision, revision))

    with_revision = _of_checkpoint(
        "--revision", metavar="REV", help="Branch, tag or commit of a name on the Hub."
    )(with_choice)
    return _of_checkpoint(
        "--precision",
        type=click.Choice(PRECISIONS),
        help="Precision to export a checkpoint to. Default: int8, which keeps the codes of a "
        "quantized checkpoint.",
    )(with_revision)


device = click.option(
    "--device", default="auto", show_default=True, help="auto, cpu, webgpu or cuda."
)

threads = click.option(
    "--threads",
    type=int,
    help="Number of threads. Default: the physical cores; 1 for a small encoder-decoder.",
)

ADAPTER = "adapter"  # name of the only adapter that a command loads

images = click.option(
    "--image",
    "images",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Image file, if BUNDLE reads images; repeatable.",
)

truncate = click.option("--truncate", is_flag=True, help="Truncate texts that are too long.")

isolate = click.option(
    "--isolate/--no-isolate",
    default=True,
    show_default=True,
    help="Load unverified bundles in a subprocess first.",
)

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")

max_new_tokens = click.option(
    "-n",
    "max_new_tokens",
    type=int,
    help="Maximum number of new tokens. Default: as many as the context allows.",
)

stop = click.option(
    "--stop", multiple=True, metavar="TEXT", help="Stop before this text; repeatable."
)

_SAMPLING = {
    "temperature": (float, "Sampling temperature; 0 picks the likeliest token."),
    "top_p": (float, "Sample from the likeliest tokens up to this total probability."),
    "seed": (int, "Seed, for reproducible sampling."),
    "top_k": (int, "Sample from the k likeliest tokens; 0 for all."),
    "min_p": (float, "Minimum probability, relative to that of the likeliest token."),
    "repetition_penalty": (float, "Above 1: repeat less."),
    "presence_penalty": (float, "Above 0: repeat less."),
    "frequency_penalty": (float, "Above 0: repeat less, in proportion to earlier uses."),
}
"""Fields of `ortolan.Sampling`: type and help."""

_MAIN_SAMPLING = ("temperature", "top_p", "seed")  # sampling options that `--help` shows


@dataclass(frozen=True, slots=True)
class SamplingChoice:
    """Sampling options of a command line."""

    values: Mapping[str, Any]
    from_model: bool  # whether others default to what the model recommends, not to greedy decoding

    def __post_init__(self) -> None:
        """Validate the options before a model is loaded."""
        from ortolan.runtime import Sampling

        Sampling(**self.values)

    def resolve(self, model: "Decoder | Seq2Seq") -> "Sampling | None":
        """Return the sampling for a model; `None` for greedy decoding."""
        from ortolan.runtime import Sampling

        base = model.recommended_sampling if self.from_model else Sampling()
        chosen = replace(base, **self.values)
        return None if chosen == Sampling() else chosen


def sampling(*, from_model: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the sampling options; the command receives them as `sampling: SamplingChoice`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_sampling(*, model_sampling: bool, **values: Any) -> Any:
            named = {name: values.pop(name) for name in _SAMPLING}
            chosen = {name: value for name, value in named.items() if value is not None}
            return command(**values, sampling=SamplingChoice(chosen, model_sampling))

        in_section = section("Sampling")
        with_sampling = in_section(
            "--model-sampling/--no-model-sampling",
            default=from_model,
            show_default=True,
            help="Default to the sampling that the model recommends.",
        )(with_sampling)
        for name, (kind, text) in reversed(_SAMPLING.items()):
            option = click.option if name in _MAIN_SAMPLING else in_section
            with_sampling = option(f"--{name.replace('_', '-')}", type=kind, help=text)(
                with_sampling
            )
        return with_sampling

    return decorate
