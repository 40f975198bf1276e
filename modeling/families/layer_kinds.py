"""The kind of each layer: full attention, a sliding window, or another mixer."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ortolan.modeling.config import DecoderConfig, Mixer
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader

FULL, SLIDING = "full_attention", "sliding_attention"

LINEAR, CONV = "linear_attention", "conv"

_OLD = {"mamba": LINEAR, "attention": FULL}
"""Names in older configs."""


def layers_of(hf: ConfigReader) -> int:
    """The number of layers."""
    return hf.size("num_hidden_layers", most=MAX_LAYERS)


def read_layer_kinds(
    hf: ConfigReader, default: Sequence[str], kinds: Sequence[str] = (FULL, SLIDING)
) -> tuple[str, ...]:
    """`layer_types`: the kind of each layer; `default` if the config has none."""
    layers = layers_of(hf)
    published = hf.get("layer_types", list, list(default))
    names = [_OLD.get(name, name) if isinstance(name, str) else name for name in published]
    if len(names) != layers or not all(name in kinds for name in names):
        raise ConfigError(
            f"{hf.name}: layer_types must hold {' or '.join(kinds)} for {layers} layers "
            f"(got {published!r:.80}). This checkpoint cannot be loaded faithfully."
        )
    return tuple(names)


def every(hf: ConfigReader, period: int) -> list[str]:
    """Full attention in every `period`-th layer, windows in the others."""
    return [SLIDING if (i + 1) % period else FULL for i in range(layers_of(hf))]


def windows_of(kinds: Sequence[str], window: int | None) -> tuple[int | None, ...]:
    """The window of each layer."""
    return tuple(window if kind == SLIDING else None for kind in kinds)


def read_window(hf: ConfigReader, default: int) -> int | None:
    """`sliding_window`: null means none; transformers takes `default` if the key is absent."""
    return hf.size("sliding_window", None) if "sliding_window" in hf else default


def one_window(hf: ConfigReader) -> tuple[int | None, ...]:
    """The same window in all layers, or none."""
    return (hf.size("sliding_window", None),) * layers_of(hf)


def with_mixers(
    config: DecoderConfig, kinds: Sequence[str], mixers: Mapping[str, Mixer]
) -> DecoderConfig:
    """The same decoder with other mixers in the layers of some kinds."""
    blocks = tuple(
        replace(block, mixer=mixers.get(kind, block.mixer))
        for block, kind in zip(config.blocks, kinds, strict=True)
    )
    return replace(config, blocks=blocks)
