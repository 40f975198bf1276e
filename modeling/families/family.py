"""The data of a model family."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ortolan.modeling.config import ModelConfig
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.weights import Table

C = TypeVar("C", bound=ModelConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family(Generic[C]):
    """A published checkpoint format.

    Attributes:
        config: reads a published config.
        weights: maps published weight names to ours; a function where they depend on the config.
        base_model_prefix: the part of a weight's name that checkpoints without a head leave out.
        hf_config: writes a published config; None if Ortolan cannot save in this format.
    """

    config: Callable[[ConfigReader], C]
    weights: Table | Callable[[C], Table]
    base_model_prefix: str = "model"
    hf_config: Callable[[C], dict[str, object]] | None = None

    def table(self, config: C) -> Table:
        """The weight names of one model."""
        return self.weights(config) if callable(self.weights) else self.weights
