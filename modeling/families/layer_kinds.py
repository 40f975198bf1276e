"""Layers that see the whole text, a window of it, or remember it, as configs name them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ortolan.modeling.config import DecoderConfig, Mixer
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Target

FULL, SLIDING = "full_attention", "sliding_attention"

LINEAR, CONV = "linear_attention", "conv"

_OLD = {"mamba": LINEAR, "attention": FULL}
"""What older configs call them."""


def read_layer_kinds(
    hf: ConfigReader, default: Sequence[str], known: Sequence[str] = (FULL, SLIDING)
) -> tuple[str, ...]:
    """`layer_types`: the kind of each layer; `default` where the config has none.

    Raises:
        ConfigError: not as many as there are layers, or another kind.
    """
    layers = hf.size("num_hidden_layers", most=MAX_LAYERS)
    given = hf.get("layer_types", list, list(default))
    kinds = [_OLD.get(kind, kind) if isinstance(kind, str) else kind for kind in given]
    if len(kinds) != layers or not all(kind in known for kind in kinds):
        raise ConfigError(
            f"{hf.name}: expected layer_types to hold {' or '.join(known)} for {layers} layers, "
            f"got {given!r:.80}. This checkpoint cannot be loaded faithfully."
        )
    return tuple(kinds)


def every(hf: ConfigReader, period: int) -> list[str]:
    """The kinds of layers of which each `period`-th sees all."""
    layers = hf.size("num_hidden_layers", most=MAX_LAYERS)
    return [SLIDING if (i + 1) % period else FULL for i in range(layers)]


def windows_of(kinds: Sequence[str], window: int | None) -> tuple[int | None, ...]:
    """The window of each layer."""
    return tuple(window if kind == SLIDING else None for kind in kinds)


def with_mixers(
    config: DecoderConfig, kinds: Sequence[str], mixers: Mapping[str, Mixer]
) -> DecoderConfig:
    """The same decoder with other mixers in layers of some kinds."""
    blocks = tuple(
        replace(block, mixer=mixers.get(kind, block.mixer))
        for block, kind in zip(config.blocks, kinds, strict=True)
    )
    return replace(config, blocks=blocks)


def either(*names: str, offset: float = 0.0) -> tuple[Target, ...]:
    """What is published under one name, and ours under one for each kind of layer."""
    return tuple(Target(name, offset=offset) for name in names)
