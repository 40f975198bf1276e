"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

import click

from ortolan import runtime
from ortolan.cli.help import Decorator, section

path = click.Path(path_type=Path)

model_path = click.Path(path_type=str)
"""Type of a path, or of a name on the Hugging Face Hub."""

bundle = click.argument("bundle", type=model_path)
"""A bundle: its folder, or its name on the Hugging Face Hub; see `ortolan.cli.opening`."""

bundle_folder = click.argument("bundle", type=path)
"""A bundle on this machine, for commands that change or convert it."""

model = click.argument("model", type=model_path)
"""A bundle or a checkpoint: a path, or a name on the Hub; see `ortolan.cli.ready`."""

base_model = click.option(
    "--base-model",
    metavar="REPO",
    help="Repository of the checkpoint on the Hub. Default: the one it was fetched from.",
)

license_id = click.option(
    "--license", "license_id", metavar="ID", help="License, such as apache-2.0."
)


def grouped(name: str, make: Callable[..., Any], options: Mapping[str, Decorator]) -> Decorator:
    """Add options by their names; the command receives what `make` makes of them as `name`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_group(**values: Any) -> Any:
            own = {option: values.pop(option) for option in options}
            return command(**values, **{name: make(**own)})

        added: Callable[..., Any] = with_group
        for option in reversed([*options.values()]):
            added = option(added)
        return added

    return decorate


# Precisions that `chat`, `run` and `serve` export a checkpoint to
PRECISIONS = ("fp32", "fp16", "int8", "int4")

_of_checkpoint = section("Checkpoints and names")


@dataclass(frozen=True, slots=True)
class CheckpointChoice:
    """Options of a command line for checkpoints and names; `None` where they are left out."""

    precision: str | None
    revision: str | None


checkpoint = grouped(
    "checkpoint",
    CheckpointChoice,
    {
        "precision": _of_checkpoint(
            "--precision",
            type=click.Choice(PRECISIONS),
            help="Precision to export a checkpoint to. Default: int8, which keeps the codes of a "
            "quantized checkpoint.",
        ),
        "revision": _of_checkpoint(
            "--revision", metavar="REV", help="Branch, tag or commit of a name on the Hub."
        ),
    },
)

threads = click.option(
    "--threads",
    type=int,
    help="Number of threads. Default: the physical cores; 1 for a small encoder-decoder.",
)


def _isolate(option: Callable[..., Decorator]) -> Decorator:
    return option(
        "--isolate/--no-isolate",
        default=True,
        show_default=True,
        help="Load unverified bundles in a subprocess first.",
    )


def _loading(isolate: Decorator) -> Decorator:
    device = click.option(
        "--device", default="auto", show_default=True, help="auto, cpu, webgpu or cuda."
    )
    return grouped("settings", dict, {"device": device, "threads": threads, "isolate": isolate})


isolate = _isolate(click.option)
loading = _loading(isolate)
"""How to load a bundle: options of `ortolan.load`."""

loading_in_section = _loading(_isolate(section("Loading")))
"""The same for a command with many options."""

ADAPTER = "adapter"  # name of the only adapter that a command loads

images = click.option(
    "--image",
    "images",
    type=path,
    multiple=True,
    help="Image file, if BUNDLE reads images; repeatable.",
)

truncate = click.option("--truncate", is_flag=True, help="Truncate texts that are too long.")

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
        runtime.Sampling(**self.values)

    def resolve(self, model: runtime.Decoder | runtime.Seq2Seq) -> runtime.Sampling | None:
        """Return the sampling for a model; `None` for greedy decoding."""
        base = model.recommended_sampling if self.from_model else runtime.Sampling()
        chosen = replace(base, **self.values)
        return None if chosen == runtime.Sampling() else chosen


def sampling(*, from_model: bool) -> Decorator:
    """Add the sampling options; the command receives them as `sampling: SamplingChoice`."""

    def chosen(*, model_sampling: bool, **values: Any) -> SamplingChoice:
        present = {name: value for name, value in values.items() if value is not None}
        return SamplingChoice(present, model_sampling)

    in_section = section("Sampling")
    options = {
        name: (click.option if name in _MAIN_SAMPLING else in_section)(
            f"--{name.replace('_', '-')}", type=kind, help=text
        )
        for name, (kind, text) in _SAMPLING.items()
    }
    options["model_sampling"] = in_section(
        "--model-sampling/--no-model-sampling",
        default=from_model,
        show_default=True,
        help="Default to the sampling that the model recommends.",
    )
    return grouped("sampling", chosen, options)
