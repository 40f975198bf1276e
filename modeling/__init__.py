"""PyTorch: what a transformer is, and the checkpoints it is read from.

Knows nothing of ONNX Runtime, bundles or generation.
"""

from ortolan.modeling.checkpoint import load, read_config, save
from ortolan.modeling.config import TransformerConfig
from ortolan.modeling.errors import CheckpointError, ConfigError, ModelingError, WeightError
from ortolan.modeling.transformer import Decoder

__all__ = [
    "CheckpointError",
    "ConfigError",
    "Decoder",
    "ModelingError",
    "TransformerConfig",
    "WeightError",
    "load",
    "read_config",
    "save",
]
