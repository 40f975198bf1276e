"""PyTorch: what a transformer is, and the checkpoints it is read from."""

from ortolan.modeling.checkpoint.folder import load, read_config, save
from ortolan.modeling.config import (
    EncoderConfig,
    EncoderDecoderConfig,
    ModelConfig,
    TransformerConfig,
)
from ortolan.modeling.errors import CheckpointError, ConfigError, ModelingError, WeightError
from ortolan.modeling.models.stack import Model
from ortolan.modeling.models.transformer import Decoder, Encoder, EncoderDecoder

__all__ = [
    "CheckpointError",
    "ConfigError",
    "Decoder",
    "Encoder",
    "EncoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "Model",
    "ModelConfig",
    "ModelingError",
    "TransformerConfig",
    "WeightError",
    "load",
    "read_config",
    "save",
]
