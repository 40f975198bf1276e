"""Shortens a model to one block of each kind, to trace instead of the whole.

Blocks of equal configs have equal graphs, and each takes long to trace. `repeat.py` copies them in
the graph instead:

    layers      A B A B A      the last one is a kind of its own: it may continue with fewer tokens
    traced      A B C          C is the last A
    of_layers   0 1 0 1 2
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
    EncoderConfig,
    EncoderDecoderConfig,
    FeatureHead,
    ModelConfig,
    StackConfig,
)
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.models.stack import Stack
from ortolan.runtime.bundle.interface import CROSS, PAST, PRESENT

C = TypeVar("C", bound=ModelConfig)

MARKS = "ortolan"
ENTER, LEAVE, COPY = "Enter", "Leave", "Copy"
"""Temporary nodes where the stream enters and leaves a block, and where a copy belongs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Which block of the short model stands for each layer of the whole one.

    Attributes:
        of_layers: the number of the block for every layer, by the prefix of the stack.
        stacks: the prefix of the stack whose layers a number in a name counts, by the part of the
            name before the number: `past_key_values` in `past_key_values.3.key`.
    """

    of_layers: Mapping[str, Sequence[int]]
    stacks: Mapping[str, str]

    @property
    def repeat(self) -> bool:
        """Whether a block stands for more than one layer."""
        return any(len(set(layers)) < len(layers) for layers in self.of_layers.values())


def shorten(config: C) -> tuple[C, Blocks]:
    """The config of the short model, and which layers its blocks stand for."""
    of_layers: dict[str, Sequence[int]] = {}
    stacks: dict[str, str] = {}
    for prefix, stack in sides_of(config).stacks.items():
        kinds = _kinds(stack.blocks)
        of_layers[prefix] = [*map(kinds.index, stack.blocks[:-1]), len(kinds)]
        if _reads_layers(stack):
            of_layers[prefix] = range(len(stack.blocks))
        is_decoder = isinstance(stack, DecoderConfig)
        names = ("decoder", PAST, PRESENT, CROSS) if is_decoder else ("encoder",)
        weights = () if stack.shared_block else (f"{prefix}blocks",)
        stacks |= dict.fromkeys((*names, *weights), prefix)
    return _shortened(config), Blocks(of_layers=of_layers, stacks=stacks)


def mark(model: TransformerModel, blocks: Blocks) -> None:
    """Make the blocks of a model mark the stream around them whenever they run."""
    for prefix in blocks.of_layers:
        stack = model.get_submodule(prefix.rstrip("."))
        if not isinstance(stack, Stack):
            raise TypeError(f"{prefix}: expected a stack, got {type(stack).__name__}")
        for block in set(stack.layers):
            block.forward = partial(_marked, prefix, block.forward)  # type: ignore[method-assign]


def _kinds(blocks: Sequence[BlockConfig]) -> list[BlockConfig]:
    """Every kind of block before the last one, once, in order."""
    return list(dict.fromkeys(blocks[:-1]))


def _reads_layers(stack: ModelConfig) -> bool:
    """Whether a head reads some layers by their numbers, so that all have to be traced."""
    return isinstance(stack, EncoderConfig) and (
        isinstance(stack.head, FeatureHead) and len(stack.head.early) > 0
    )


def _shortened(config: C) -> C:
    match config:
        case _ if _reads_layers(config):
            return config
        case EncoderDecoderConfig(encoder=encoder, decoder=decoder):
            return replace(config, encoder=_shortened(encoder), decoder=_shortened(decoder))
        case StackConfig(blocks=blocks):
            return replace(config, blocks=(*_kinds(blocks), blocks[-1]))
        case _:
            return config


def _marked(prefix: str, run: Any, x: Tensor, *args: Any, **options: Any) -> Any:
    out, present = run(_stream(ENTER, prefix, x), *args, **options)
    return _stream(LEAVE, prefix, out), present


def _stream(name: str, prefix: str, x: Tensor) -> Tensor:
    return torch.onnx.ops.symbolic(
        f"{MARKS}::{name}", (x,), {"stack": prefix}, dtype=x.dtype, shape=x.shape, version=1
    )
