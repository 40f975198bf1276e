"""What a training needs to know of its objective.

The loop in `training.py` knows steps, rates and figures; a task knows its data and its loss.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from torch import Tensor, nn

from ortolan.modeling.errors import RecipeError
from ortolan.modeling.models.stack import Model
from ortolan.modeling.training.recipe import DataRecipe

T = TypeVar("T")

Batch = tuple[Tensor, ...]
"""What one step learns from; only its task knows what each tensor is."""


class Task(Protocol):
    """One objective on one set of data; building one reads, and writes nothing."""

    @property
    def module(self) -> Model:
        """What is trained; its parameters are changed in place."""
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
        """Write what stands beside the weights: the tokenizer, defaults of generation, ..."""
        ...

    def figures(self) -> dict[str, object]:
        """What else training.json says, computed once at the end."""
        ...


def initialise(module: Model, *, layers: int, std: float = 0.02) -> None:
    """Normal weights, those of residual projections smaller with depth (GPT-2).

    Args:
        module: its matrices and biases are drawn anew; norms stay as they are.
        layers: residual projections in series are twice as many.
        std: standard deviation of the other matrices.
    """
    for name, parameter in module.named_parameters():
        if parameter.dim() == 2:
            is_residual = name.endswith((".out.weight", ".down.weight"))
            nn.init.normal_(parameter, std=std / math.sqrt(2 * layers if is_residual else 1))
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


def required(value: T | None, field: str, data: DataRecipe) -> T:
    """A field of a recipe that other data can do without.

    Raises:
        RecipeError: it is absent.
    """
    if value is None:
        source = data.__struct_config__.tag
        raise RecipeError(f"{field}: expected a value for {source}, got none. Set it.")
    return value


def write_json(path: Path, value: object) -> None:
    """Write a file that people may read."""
    path.write_text(json.dumps(value, indent=2) + "\n")
