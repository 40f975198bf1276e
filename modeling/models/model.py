"""The base class of all models."""

from torch import nn

from ortolan.modeling.config import ModelConfig


class TransformerModel(nn.Module):
    """A model: its config and its weights."""

    config: ModelConfig

    @property
    def tied(self) -> dict[str, str]:
        """Names under which a checkpoint may repeat a weight, and the name of that weight."""
        return {}
