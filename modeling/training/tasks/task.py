"""The interface between the trainer and a task, and helpers that tasks share."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.errors import RecipeError
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.training.data import Data
from ortolan.modeling.training.recipe import OptimizerRecipe

Batch = tuple[Tensor, ...]
"""Inputs of the model, then the labels; a task with a loss of its own may decide otherwise."""

IGNORED = -100
"""Label of tokens that are not learned."""


class Task(ABC):
    """One objective on one data set.

    The constructor gets the recipe, its folder and the task's options. It reads the data, sets the
    attributes below, and writes nothing. Training changes the parameters of `module` in place.
    """

    recipe: OptimizerRecipe
    module: TransformerModel
    data: Data

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """Yield batches forever, the same ones for the same seed."""

    def loss(self, batch: Batch) -> Tensor:
        """Mean cross-entropy of a batch, a float32 scalar; runs under autocast and torch.compile.

        Logits are `(B, V)` or `(B, S, V)`, labels `(B,)` or `(B, S)`.
        """
        *inputs, labels = batch
        logits = self.module(*inputs).float()
        return F.cross_entropy(
            logits.flatten(0, -2),
            labels.flatten(),
            ignore_index=IGNORED,
            label_smoothing=self.recipe.label_smoothing,
        )

    @abstractmethod
    def measure(self) -> dict[str, float]:
        """Held-out figures by name, as in training.json; the first is plotted."""

    @abstractmethod
    def companions(self, folder: Path) -> None:
        """Write what the model needs in use, such as the tokenizer."""

    @abstractmethod
    def figures(self) -> dict[str, object]:
        """Additional figures for training.json, computed once at the end."""


SKIPPED = ("decay", "step_bias")
"""Parameters that set how fast a recurrent state forgets; they keep the values of their papers."""


def initialise(module: TransformerModel, *, layers: int, std: float = 0.02) -> None:
    """Draw the weights from a normal distribution and set biases to zero (GPT-2).

    Residual projections shrink with the number of layers. Norms and the parameters in `SKIPPED` do
    not change.
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
