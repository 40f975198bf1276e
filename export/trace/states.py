"""The states of a decoder, as the manifest lists them."""

from collections.abc import Iterable, Iterator

from ortolan.modeling.config import AttentionConfig, DecoderConfig
from ortolan.runtime.bundle.interface import CROSS, PAST, PRESENT, state_names
from ortolan.runtime.bundle.manifest import State, StateType


def cache_names(prefix: str, decoder: DecoderConfig) -> list[str]:
    """Names of what each layer carries, in the order of a graph."""
    return [
        f"{prefix}.{layer}.{state.name}"
        for layer, block in enumerate(decoder.blocks)
        for state in block.mixer.states
    ]


def cache_states(decoder: DecoderConfig, dtype: StateType) -> Iterator[State]:
    """What each layer of a decoder carries."""
    inputs, outputs = cache_names(PAST, decoder), cache_names(PRESENT, decoder)
    states = [state for block in decoder.blocks for state in block.mixer.states]
    for taken, given, state in zip(inputs, outputs, states, strict=True):
        yield State(
            name=taken.removeprefix(f"{PAST}."),
            input=taken,
            output=given,
            shape=("batch", *state.shape),
            dtype=dtype,
            update=state.update,
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
