"""Transformers in PyTorch, and the checkpoints they are loaded from."""

from ortolan.modeling.checkpoint.folder import load, read_config, save
from ortolan.modeling.config import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    ModelConfig,
    RecurrentConfig,
)
from ortolan.modeling.errors import CheckpointError, ConfigError, ModelingError, WeightError
from ortolan.modeling.models.encoder import EncoderModel
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.models.recurrent import RecurrentModel
from ortolan.modeling.models.transformer import DecoderModel, EncoderDecoderModel

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DecoderConfig",
    "DecoderModel",
    "EncoderConfig",
    "EncoderDecoderConfig",
    "EncoderDecoderModel",
    "EncoderModel",
    "ModelConfig",
    "ModelingError",
    "RecurrentConfig",
    "RecurrentModel",
    "TransformerModel",
    "WeightError",
    "load",
    "read_config",
    "save",
]
