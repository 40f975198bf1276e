"""Names of the inputs and outputs of graphs: the bundle's contract."""

from ortolan.modeling.config import (
    EncoderDecoderConfig,
    ModelConfig,
    StackConfig,
    TransformerConfig,
)

STEP_INPUTS = ("input_ids", "seqlens_k", "total_sequence_length", "logit_positions")

SOURCE_LENGTHS = "source_lengths"


def cache_names(prefix: str, config: StackConfig) -> list[str]:
    """Names of the cache's tensors, two a layer, in the order of the graph."""
    return [f"{prefix}.{i}.{kind}" for i in range(len(config.blocks)) for kind in ("key", "value")]


def cross_names(config: StackConfig) -> list[str]:
    """Names of the keys and values of a source, two a layer, in the order of the graphs."""
    return cache_names("cross", config)


def map_names(config: ModelConfig) -> list[str]:
    """Names of the maps of attention, in the order of the layers."""
    match config:
        case EncoderDecoderConfig(encoder=encoder, decoder=decoder):
            return [*_self("encoder", encoder), *_self_and_cross("decoder", decoder)]
        case TransformerConfig():
            return _self("decoder", config)
        case StackConfig():
            return _self("encoder", config)
        case _:
            return []


def _self(side: str, config: StackConfig) -> list[str]:
    return [f"{side}.{i}.self" for i in range(len(config.blocks))]


def _self_and_cross(side: str, config: StackConfig) -> list[str]:
    return [f"{side}.{i}.{kind}" for i in range(len(config.blocks)) for kind in ("self", "cross")]
