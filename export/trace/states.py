"""The states of a decoder, as the manifest lists them."""

from collections.abc import Iterable, Iterator

from ortolan.modeling.config import AttentionConfig, DecoderConfig
from ortolan.runtime.bundle.interface import CROSS, PAST, PRESENT, state_names
from ortolan.runtime.bundle.manifest import State, StateType


def cache_states(decoder: DecoderConfig, dtype: StateType) -> Iterator[State]:
    """What a decoder extends, two a layer."""
    layers = len(decoder.blocks)
    inputs, outputs = state_names(PAST, layers), state_names(PRESENT, layers)
    shapes = _shapes(block.attention for block in decoder.blocks)
    for taken, given, (heads, width) in zip(inputs, outputs, shapes, strict=True):
        yield State(
            name=taken.removeprefix(f"{PAST}."),
            input=taken,
            output=given,
            shape=("batch", heads, "capacity", width),
            dtype=dtype,
            update="append",
        )


def source_states(decoder: DecoderConfig, dtype: StateType) -> Iterator[State]:
    """Keys and values of a source, two a layer."""
    names = state_names(CROSS, len(decoder.blocks))
    shapes = _shapes(b.cross_attention for b in decoder.blocks if b.cross_attention)
    for name, (heads, width) in zip(names, shapes, strict=True):
        yield State(
            name=name,
            input=name,
            output=name,
            shape=("batch", heads, "source", width),
            dtype=dtype,
            update="source",
        )


def _shapes(attentions: Iterable[AttentionConfig]) -> Iterator[tuple[int, int]]:
    """Heads and width of the keys, then of the values, of each layer."""
    for attention in attentions:
        yield attention.num_kv_heads, attention.head_dim
        yield attention.num_kv_heads, attention.value_width
