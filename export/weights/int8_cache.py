"""Scales of an int8 KV cache, from the keys and values of some texts.

Shape letters: K key/value heads, S tokens, D head width.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import onnx_ir as ir
import torch
from torch import Tensor

from ortolan.export.errors import OptionError
from ortolan.export.exportable import Cached, Exportable
from ortolan.export.passes.quantize_cache import Turned, quantize_cache, scale_name, turned_keys
from ortolan.export.streamed import Result, run
from ortolan.runtime.bundle.kinds import STEPPED
from ortolan.runtime.bundle.manifest import State

CACHE_BYTES = 256 << 20
"""Maximum bytes that all texts cache in float32, since they run side by side."""

LARGEST_CODE = 127

MARGIN = 1.25
"""Factor of scales from the short text of the probes, which does not reach the extremes of most
channels (docs/adr/0018)."""

SMALLEST_SCALE = 1e-3
"""Smallest scale of a channel, relative to the largest of its head; a channel that is 0 in these
texts may not be 0 in others."""


def with_int8_cache(
    model: Exportable,
    graphs: Mapping[str, ir.Model],
    texts: Sequence[Tensor],
    *,
    margin: float = 1.0,
) -> Exportable:
    """The model of a decoder with scales among its tables, taken from texts, times a margin.

    The graphs, by role, are rewritten in place.
    """
    states = [state for state in model.states("float32") if state.update == "append"]
    if model.cached is None or not states:
        raise OptionError(
            "An int8 cache needs a decoder that caches keys and values. Leave --cache out."
        )
    steps = [graph for role, graph in graphs.items() if role in STEPPED]
    turned = turned_keys(steps[0].graph, states)
    for graph in steps:
        quantize_cache(graph.graph, states)
    largest = _largest(model, model.cached, states, _few(texts, states), turned)
    scales = {
        scale_name(state): margin * _scale(reach)
        for state, reach in zip(states, largest, strict=True)
    }
    return replace(model, tables={**model.tables, **scales})


def _few(ids: Sequence[Tensor], states: Sequence[State]) -> list[Tensor]:
    """The longest texts that fit into `CACHE_BYTES`, with their cache twice."""
    room = CACHE_BYTES // (2 * sum(state.unit_bytes for state in states))
    chosen: list[Tensor] = []
    for text in sorted(ids, key=len, reverse=True):
        if not chosen or len(text) <= room:
            chosen.append(text[: max(room, 1)])
            room -= len(chosen[-1])
    return chosen


def _largest(
    model: Exportable,
    cached: Cached,
    states: Sequence[State],
    texts: Sequence[Tensor],
    turned: Mapping[str, Turned | None],
) -> list[Tensor]:
    """Largest magnitude of each channel of each state, `(K, 1, D)`."""
    largest: list[Tensor] = []
    for event in run(model.module, model.weights, [partial(cached, text) for text in texts]):
        if isinstance(event, Result):
            buffers = [buffer[0] for layer in event.value for buffer in layer]
            one = list(_reaches(states, buffers, turned))
            largest = [torch.maximum(*pair) for pair in zip(largest or one, one, strict=True)]
    return largest


def _reaches(
    states: Sequence[State], buffers: Sequence[Tensor], turned: Mapping[str, Turned | None]
) -> Iterator[Tensor]:
    for state, x_KSD in zip(states, buffers, strict=True):
        if state.name in turned:
            yield reach_of_keys(x_KSD, turned[state.name])
        else:
            yield x_KSD.abs().amax(1, keepdim=True)


def reach_of_keys(x_KSD: Tensor, turned: Turned | None) -> Tensor:
    """Largest magnitude of each channel of keys at any position, `(K, 1, D)`.

    A rotary embedding moves one channel of a pair into the other as the position grows, so both can
    reach the length of the pair. If keys were rotated before the attention node, the pairs are
    unknown, and all channels of a head can reach its largest magnitude.
    """
    if turned is None:
        return x_KSD.abs().amax((1, 2), keepdim=True).expand(-1, 1, x_KSD.shape[2]).contiguous()
    pairs, rest = x_KSD[..., : turned.channels], x_KSD[..., turned.channels :]
    pairs = torch.unflatten(pairs, -1, (-1, 2) if turned.interleaved else (2, -1))
    lengths = pairs.norm(dim=-1 if turned.interleaved else -2, keepdim=True).expand_as(pairs)
    return torch.cat((lengths.flatten(-2), rest.abs()), -1).amax(1, keepdim=True)


def _scale(largest_K1D: Tensor) -> Tensor:
    of_head = largest_K1D.amax(-1, keepdim=True)
    least = torch.where(of_head > 0, of_head * SMALLEST_SCALE, 1.0)
    return torch.maximum(largest_K1D, least).float() / LARGEST_CODE
