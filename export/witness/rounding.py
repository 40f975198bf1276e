"""How much of a difference the rounding of float32 explains in one model.

A constant leaves room for the types that round most, in which faults of all others hide. So a
difference that it would accept is compared with what the publisher's model does if every part of it
reads and returns numbers that are one unit in the last place larger or smaller, at random: Monte
Carlo arithmetic (Stott Parker 1997, "Monte Carlo Arithmetic: exploiting randomness in
floating-point arithmetic").
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ortolan.export.witness.compare import Comparison, plain
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.topic import Topic

NEGLIGIBLE = 1e-5
"""Difference, relative to the largest number, that is not looked into."""

ROOM = 16
"""How much larger a difference may be than what one such change does.

Measured: at most 4 over the types of `docs/families.md`."""

LOADED = ("stack", "sentence_stack")
"""Attributes of a publisher that has loaded its model."""

UNIT = 2.0**-23
"""Relative distance between neighbours in float32, at most."""


def bound_of(topic: Topic, publisher: Publisher, question: Any, theirs: Any) -> float | None:
    """Largest difference that rounding explains; None if the answer needs no model."""
    if vars(publisher).keys().isdisjoint(LOADED):
        return None
    moved = Comparison(sys.float_info.max)
    with disturbed(publisher.stack):
        moved.compare(plain(topic.theirs(publisher, question)), plain(theirs))
    return max(NEGLIGIBLE, ROOM * moved.largest) if moved.largest else None


@contextmanager
def disturbed(model: nn.Module) -> Iterator[None]:
    """Change what the innermost parts of a model read and return by a unit in the last place."""
    chance = torch.Generator().manual_seed(0)

    def changed(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(changed, value))
        if not isinstance(value, Tensor) or value.dtype != torch.float32:
            return value
        signs = torch.randint(0, 2, value.shape, generator=chance) * 2 - 1
        moved = value * (1 + UNIT * signs)
        return torch.where(moved.isfinite(), moved, value)  # the lowest number masks tokens

    def enter(_: nn.Module, arguments: Any, named: Any) -> Any:
        return changed(arguments), {name: changed(value) for name, value in named.items()}

    def leave(_: nn.Module, __: Any, output: Any) -> Any:
        return changed(output)

    with ExitStack() as hooks:
        for part in model.modules():
            if not any(part.children()):
                hooks.callback(part.register_forward_pre_hook(enter, with_kwargs=True).remove)
                hooks.callback(part.register_forward_hook(leave).remove)
        yield
