"""The model that a config describes, of any kind."""

from ortolan.modeling.config import ModelConfig, RecurrentConfig
from ortolan.modeling.models import transformer
from ortolan.modeling.models.recurrent import RecurrentModel
from ortolan.modeling.models.stack import TransformerModel


def build(config: ModelConfig) -> TransformerModel:
    """The model that a config describes, with random weights.

    Raises:
        TypeError: not the config of a model.
    """
    if isinstance(config, RecurrentConfig):
        return RecurrentModel(config)
    return transformer.build(config)
