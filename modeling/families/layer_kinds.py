"""Layers that see the whole text, and layers that see a window of it, as configs name them."""

from collections.abc import Sequence

from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader

FULL, SLIDING = "full_attention", "sliding_attention"


def read_layer_kinds(hf: ConfigReader, default: Sequence[str]) -> tuple[str, ...]:
    """`layer_types`: the kind of each layer; `default` where the config has none.

    Raises:
        ConfigError: not as many as there are layers, or another kind.
    """
    layers = hf.size("num_hidden_layers", most=MAX_LAYERS)
    kinds = hf.get("layer_types", list, list(default))
    if len(kinds) != layers or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise ConfigError(
            f"{hf.name}: expected layer_types to hold {FULL} or {SLIDING} for {layers} layers, "
            f"got {kinds!r:.80}. This checkpoint cannot be loaded faithfully."
        )
    return tuple(kinds)


def every(hf: ConfigReader, period: int) -> list[str]:
    """The kinds of layers of which each `period`-th sees all."""
    layers = hf.size("num_hidden_layers", most=MAX_LAYERS)
    return [SLIDING if (i + 1) % period else FULL for i in range(layers)]


def windows_of(kinds: Sequence[str], window: int | None) -> tuple[int | None, ...]:
    """The window of each layer."""
    return tuple(window if kind == SLIDING else None for kind in kinds)
