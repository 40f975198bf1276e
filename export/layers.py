"""A model run a layer at a time, so that only one layer's weights are in memory.

Knows which weights a layer needs and how to call it with them. Does not know what the results
are for.

Shape letters: S tokens of a text, E model width.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ortolan.modeling import Decoder, TransformerConfig
from ortolan.modeling.checkpoint import empty_decoder
from ortolan.modeling.weights import EMBEDDING, HEAD, Weights, read_weight

CHUNK_ROWS = 4096
"""Rows of the embedding or the head in memory at once."""


def skeleton(config: TransformerConfig, tables: Mapping[str, Tensor]) -> Decoder:
    """A decoder without weights, but with its tables (`positions.tables`)."""
    module = empty_decoder(config)
    for name, table in tables.items():
        module.register_buffer(name, table, persistent=False)
    return module


def head_name(module: Decoder) -> str:
    """The weight that gives the logits."""
    return EMBEDDING if module.head is None else HEAD


def read_layer(module: Decoder, weights: Weights, prefix: str) -> dict[str, Tensor]:
    """The parameters below `prefix`, in float32, by their names below it."""
    return {
        name.removeprefix(prefix): read_weight(weights, name)
        for name, _ in module.named_parameters()
        if name.startswith(prefix)
    }


def run_block(
    module: Decoder, index: int, layer: dict[str, Tensor], streams: Sequence[Tensor]
) -> list[Tensor]:
    """One layer over every stream `(S, E)`."""
    block = module.blocks[index]
    return [
        torch.func.functional_call(block, layer, (x_SE[None], module.rotary))[0] for x_SE in streams
    ]


def run_final_norm(module: Decoder, weights: Weights, x_SE: Tensor) -> Tensor:
    """What the head reads, `(S, E)`."""
    final = read_layer(module, weights, "final_norm.")
    out_SE: Tensor = torch.func.functional_call(module.final_norm, final, (x_SE,))
    return out_SE


def embed(module: Decoder, weights: Weights, texts: Sequence[Tensor]) -> list[Tensor]:
    """What enters the first block, `(S, E)` for each text of ids `(S,)`."""
    used, places = torch.unique(torch.cat(list(texts)), return_inverse=True)
    parameters = {EMBEDDING: _gather_rows(weights, EMBEDDING, used)}
    if module.position_embedding is not None:
        name = "position_embedding.weight"
        longest = max(len(ids) for ids in texts)
        parameters[name] = weights.rows(name, 0, longest).float()
    call = _Embed(module)
    state = {f"decoder.{name}": value for name, value in parameters.items()}
    return [
        torch.func.functional_call(call, state, (places_S[None],))[0]
        for places_S in places.split([len(ids) for ids in texts])
    ]


class _Embed(torch.nn.Module):
    """`Decoder.embed` as a module, so that it can be called with few rows of its table."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, ids: Tensor) -> Tensor:
        return self.decoder.embed(ids, torch.arange(ids.shape[1])[None])


def _gather_rows(weights: Weights, name: str, indices: Tensor) -> Tensor:
    """Some rows of a large table, float32; `indices` are sorted."""
    rows, width = weights.shape(name)
    gathered = torch.empty(len(indices), width)
    for start in range(0, rows, CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, rows)
        inside = (indices >= start) & (indices < stop)
        if bool(inside.any()):
            gathered[inside] = weights.rows(name, start, stop)[indices[inside] - start].float()
    return gathered
