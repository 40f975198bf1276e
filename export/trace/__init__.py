"""PyTorch to graphs, without weights: one file for each kind of model."""

import onnx_ir as ir
import torch

from ortolan.export.trace.attention_maps import trace_attention_maps
from ortolan.export.trace.decoder import trace_decoder
from ortolan.export.trace.encoder import trace_encoder
from ortolan.export.trace.encoder_decoder import trace_source_encoder, trace_target_decoder
from ortolan.export.trace.names import cache_names, cross_names, map_names
from ortolan.export.trace.program import OPSET
from ortolan.modeling.config import (
    EncoderConfig,
    EncoderDecoderConfig,
    ModelConfig,
    TransformerConfig,
)
from ortolan.runtime.bundle.kinds import MAPS_ROLE
from ortolan.runtime.bundle.manifest import Graph

__all__ = [
    "OPSET",
    "cache_names",
    "cross_names",
    "map_names",
    "trace_attention_maps",
    "trace_decoder",
    "trace_encoder",
    "trace_graph",
    "trace_source_encoder",
    "trace_target_decoder",
]


def trace_graph(config: ModelConfig, role: str, graph: Graph, *, dtype: torch.dtype) -> ir.Model:
    """Trace one graph of a bundle.

    Args:
        config: the model.
        role: of the graph; see `runtime.manifest.GRAPH_ROLES`.
        graph: says whether a step has a fixed number of tokens.
        dtype: of weights, activations and states.

    Raises:
        ValueError: models of this kind have no such graph.
    """
    match config, role:
        case _, str(maps) if maps == MAPS_ROLE:
            return trace_attention_maps(config, dtype=dtype)
        case TransformerConfig(), "decoder" | "prefill" | "decode":
            return trace_decoder(config, dtype=dtype, sequence=graph.sequence)
        case EncoderConfig(), "encoder":
            return trace_encoder(config, dtype=dtype)
        case EncoderDecoderConfig(), "encoder":
            return trace_source_encoder(config, dtype=dtype)
        case EncoderDecoderConfig(), "decoder" | "prefill" | "decode":
            return trace_target_decoder(config, dtype=dtype, sequence=graph.sequence)
        case _:
            raise ValueError(f"{role}: no graph of {type(config).__name__}")
