"""The interface between the trainer and a task, and helpers that tasks share."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from ortolan import files
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.training.data import Data

Batch = tuple[Tensor, ...]
"""Tensors of one training step; only the task knows what they are."""


class Task(Protocol):
    """One objective on one data set.

    The constructor gets the recipe, its folder and the task's options. It reads the data and writes
    nothing.
    """

    @property
    def module(self) -> TransformerModel:
        """The model; training changes its parameters in place."""
        ...

    @property
    def data(self) -> Data:
        """Data to learn from and to measure on."""
        ...

    def batches(self) -> Iterator[Batch]:
        """Yield batches forever, the same ones for the same seed."""
        ...

    def loss(self, batch: Batch) -> Tensor:
        """Mean loss of a batch, a float32 scalar; runs under autocast and torch.compile."""
        ...

    def measure(self) -> dict[str, float]:
        """Held-out figures by name, as in training.json; the first is plotted."""
        ...

    def companions(self, folder: Path) -> None:
        """Write what the model needs in use, such as the tokenizer."""
        ...

    def figures(self) -> dict[str, object]:
        """Additional figures for training.json, computed once at the end."""
        ...


SKIPPED = ("decay", "step_bias")
"""Parameters that set how fast a recurrent state forgets; they keep the values of their papers."""


def initialise(module: TransformerModel, *, layers: int, std: float = 0.02) -> None:
    """Draw the weights from a normal distribution and set biases to zero (GPT-2).

    Args:
        module: the model; norms and the parameters in `SKIPPED` do not change.
        layers: number of blocks; residual projections shrink with it.
        std: standard deviation of the other matrices.
    """
    for name, parameter in module.named_parameters():
        kind = name.rpartition(".")[2]
        if kind in SKIPPED:
            continue
        if parameter.dim() == 2:
            is_residual = name.endswith((".out.weight", ".down.weight"))
            nn.init.normal_(parameter, std=std / math.sqrt(2 * layers if is_residual else 1))
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


def check_length(length: int, longest: int, *, least: int = 1) -> None:
    """Raise RecipeError if `sequence_length` is too short or exceeds the model's context."""
    if not least <= length <= longest:
        raise RecipeError(
            f"training.sequence_length must be from {least} to {longest}, the model's context (got "
            f"{length})."
        )


def write_json(path: Path, value: object) -> None:
    """Write an indented JSON file."""
    files.write(path, json.dumps(value, indent=2) + "\n")
