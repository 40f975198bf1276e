"""The base class of all models."""

from torch import nn

from ortolan.modeling.config import ModelConfig


class TransformerModel(nn.Module):
    """A model: a config, and weights that have more than one name."""

    config: ModelConfig

    @property
    def tied(self) -> dict[str, str]:
        """Names that a checkpoint may use for a copy of a weight, and that weight's name."""
        return {}
