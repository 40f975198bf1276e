"""What the trainer needs to know of a task: its data, its loss, its figures."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from ortolan import files
from ortolan.modeling.errors import RecipeError
from ortolan.modeling.models.stack import TransformerModel
from ortolan.modeling.training.data import Data

Batch = tuple[Tensor, ...]
"""What one step learns from; only its task knows what each tensor is."""


class Task(Protocol):
    """One objective on one set of data; constructing one reads, and writes nothing."""

    @property
    def module(self) -> TransformerModel:
        """What is trained; its parameters are changed in place."""
        ...

    @property
    def data(self) -> Data:
        """What it learns from and is measured on."""
        ...

    def batches(self) -> Iterator[Batch]:
        """Yield batches without end, the same for the same seed."""
        ...

    def loss(self, batch: Batch) -> Tensor:
        """The mean loss of a batch, a float32 scalar; runs under autocast and torch.compile."""
        ...

    def measure(self) -> dict[str, float]:
        """Held-out figures by name, in training.json's names; the first is drawn."""
        ...

    def companions(self, folder: Path) -> None:
        """Write what the model is used with: the tokenizer, defaults of generation, ..."""
        ...

    def figures(self) -> dict[str, object]:
        """More figures for training.json, computed once at the end."""
        ...


KEPT = ("decay", "step_bias")
"""Parameters of recurrences, whose values say how fast a state forgets."""


def initialise(module: TransformerModel, *, layers: int, std: float = 0.02) -> None:
    """Normal weights, those of residual projections smaller with depth (GPT-2).

    What says how fast a state forgets keeps the values of its paper.

    Args:
        module: the matrices and biases of its products are drawn anew; the rest stays as it is.
        layers: residual projections in series are twice as many.
        std: standard deviation of the other matrices.
    """
    for name, parameter in module.named_parameters():
        kind = name.rpartition(".")[2]
        if kind in KEPT:
            continue
        if parameter.dim() == 2:
            is_residual = name.endswith((".out.weight", ".down.weight"))
            nn.init.normal_(parameter, std=std / math.sqrt(2 * layers if is_residual else 1))
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


def check_length(length: int, longest: int, *, least: int = 1) -> None:
    """Raise RecipeError unless a model takes so many tokens: from `least` to `longest`."""
    if not least <= length <= longest:
        raise RecipeError(
            f"training: expected sequence_length from {least} to the model's {longest}, got "
            f"{length}. Correct one of them."
        )


def write_json(path: Path, value: object) -> None:
    """Write an indented file."""
    files.write(path, json.dumps(value, indent=2) + "\n")
