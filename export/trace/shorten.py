"""A model with one block of each kind, to trace in place of the whole one.

Blocks of equal configs are traced alike, one as slowly as the other; `repeat.py` copies them in the
graph instead. The last block is always traced: it may go on with fewer tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from ortolan.export.trace.sides import sides_of
from ortolan.modeling.config import (
    BlockConfig,
    DecoderConfig,
    EncoderDecoderConfig,
    ModelConfig,
    StackConfig,
)
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.models.stack import Stack
from ortolan.runtime.bundle.interface import CROSS, PAST, PRESENT

C = TypeVar("C", bound=ModelConfig)

MARKS = "ortolan"
ENTER, LEAVE = "Enter", "Leave"
"""Where the stream enters and leaves a block: nodes that are gone when a trace is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Which block of a short model each layer of the whole one is.

    Attributes:
        of_layers: the number of the block, for each layer of each stack by its prefix.
        stacks: the prefix of the stack that a number in the name of a weight, a state or a map
            counts the layers of, by what stands before the number.
    """

    of_layers: Mapping[str, Sequence[int]]
    stacks: Mapping[str, str]

    @property
    def repeat(self) -> bool:
        """Whether a block is more than one layer."""
        return any(len(set(layers)) < len(layers) for layers in self.of_layers.values())


def shorten(config: C) -> tuple[C, Blocks]:
    """The config of the short model, and its blocks."""
    of_layers: dict[str, Sequence[int]] = {}
    stacks: dict[str, str] = {}
    for prefix, stack in sides_of(config).stacks.items():
        kinds = _kinds(stack.blocks)
        of_layers[prefix] = [*map(kinds.index, stack.blocks[:-1]), len(kinds)]
        is_decoder = isinstance(stack, DecoderConfig)
        names = ("decoder", PAST, PRESENT, CROSS) if is_decoder else ("encoder",)
        weights = () if stack.shared_block else (f"{prefix}blocks",)
        stacks |= dict.fromkeys((*names, *weights), prefix)
    return _shortened(config), Blocks(of_layers=of_layers, stacks=stacks)


def mark(model: TransformerModel, blocks: Blocks) -> None:
    """Let the blocks of a model, each time that they run, mark the stream around them."""
    for prefix in blocks.of_layers:
        stack = model.get_submodule(prefix.rstrip("."))
        if not isinstance(stack, Stack):
            raise TypeError(f"{prefix}: expected a stack, got {type(stack).__name__}")
        for block in set(stack.layers):
            for way in ("forward", "step"):
                setattr(block, way, partial(_marked, prefix, getattr(block, way)))


def _kinds(blocks: Sequence[BlockConfig]) -> list[BlockConfig]:
    """Each kind once, in order; the last block is one by itself."""
    return list(dict.fromkeys(blocks[:-1]))


def _shortened(config: C) -> C:
    match config:
        case EncoderDecoderConfig(encoder=encoder, decoder=decoder):
            return replace(config, encoder=_shortened(encoder), decoder=_shortened(decoder))
        case StackConfig(blocks=blocks):
            return replace(config, blocks=(*_kinds(blocks), blocks[-1]))
        case _:
            return config


def _marked(prefix: str, run: Any, x: Tensor, *args: Any, **options: Any) -> Any:
    given = run(_stream(ENTER, prefix, x), *args, **options)
    if isinstance(given, Tensor):
        return _stream(LEAVE, prefix, given)
    return _stream(LEAVE, prefix, given[0]), *given[1:]


def _stream(name: str, prefix: str, x: Tensor) -> Tensor:
    return torch.onnx.ops.symbolic(
        f"{MARKS}::{name}", (x,), {"stack": prefix}, dtype=x.dtype, shape=x.shape, version=1
    )
