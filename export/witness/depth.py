"""How much of the publisher's model fits into memory: all layers, the first ones, or none.

Nothing of Ortolan is imported here, as in `publisher.py`.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from torch import nn

LIBRARIES = 1 << 30
"""Bytes of the imported libraries and of what a short text computes."""

Kind = Mapping[tuple[str, str], Hashable]
"""Shapes and plain attributes of a layer, by the name of the part and the attribute."""


def float32_bytes(module: nn.Module) -> int:
    """Size of a module's parameters once it is loaded."""
    return 4 * sum(parameter.numel() for parameter in module.parameters())


COUNTS = (
    *("num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers"),
    *("encoder_num_hidden_layers", "decoder_num_hidden_layers"),
)
"""Keys of numbers of layers."""


def shortened(config: Any, layers: int) -> Any:
    """The config of the first layers of the text model; of an encoder-decoder, on both sides."""
    config = deepcopy(config)
    text = config.get_text_config()
    whole = text.num_hidden_layers
    for name, value in list(vars(text).items()):
        if isinstance(value, list | tuple) and len(value) == whole:
            setattr(text, name, value[:layers])  # one item per layer
    for name in COUNTS:
        if isinstance(own := getattr(text, name, None), int):
            setattr(text, name, min(own, layers))
    return config


def stacks(whole: nn.Module, short: nn.Module) -> list[tuple[nn.ModuleList, nn.ModuleList]]:
    """The lists of layers of two models, where a shorter one has fewer items."""
    parts = dict(short.named_modules())
    return [
        (part, other)
        for name, part in whole.named_modules()
        if isinstance(part, nn.ModuleList)
        and isinstance(other := parts.get(name), nn.ModuleList)
        and len(other) < len(part)
    ]


def first_of_each(kinds: Sequence[object]) -> int:
    """Length of the shortest beginning that has everything that occurs."""
    return max((kinds.index(kind) + 1 for kind in kinds), default=0)


def kinds_of(layers: Iterable[nn.Module]) -> list[Kind]:
    """What tells layers apart: shapes and attributes, apart from numbers that count the layers."""
    kinds = [described(layer) for layer in layers]
    starts: dict[tuple[str, str], set[object]] = {}
    for number, kind in enumerate(kinds):
        for key, value in kind.items():
            starts.setdefault(key, set()).add(value - number if type(value) is int else None)
    counting = {key for key, values in starts.items() if len(values) == 1 and None not in values}
    return [{key: kind[key] for key in kind if key not in counting} for kind in kinds]


def described(module: nn.Module) -> Kind:
    """Shapes and plain attributes of a module and its parts."""
    found: dict[tuple[str, str], Hashable] = {}
    for path, part in module.named_modules():
        found[path, ""] = type(part).__qualname__
        own = (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False))
        found |= {(path, name): tuple(tensor.shape) for name, tensor in own}
        found |= {(path, name): v for name, v in vars(part).items() if _is_plain(v)}
    return found


def begins(whole: nn.Module, short: nn.Module) -> bool:
    """Whether a model of fewer layers is the beginning of the whole one, and otherwise like it."""
    described_whole = described(whole)
    lengths = {(len(layers), len(first)) for layers, first in stacks(whole, short)}

    def is_alike(key: tuple[str, str], value: Hashable) -> bool:
        other = described_whole.get(key)
        return other == value or (other, value) in lengths  # some models count their layers

    return all(is_alike(key, value) for key, value in described(short).items())


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str | None)
