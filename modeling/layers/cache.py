"""What a decoder carries from step to step.

Updates are functional: a step takes the old buffers and returns new ones, as a traced graph does.

Shape letters: B batch, S new tokens, T tokens of the source, K key/value heads, C capacity,
D head width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ortolan.modeling.config import AttentionConfig, DecoderConfig, Mixer
from ortolan.modeling.layers.sizes import is_one


class LayerCache(NamedTuple):
    """Keys and values of one layer, `(B, K, C, D)` each."""

    key: Tensor
    value: Tensor


Memory = tuple[Tensor, ...]
"""What a layer carries, in the order of its config's `states`: of attention, a `LayerCache`."""


class CrossCache(NamedTuple):
    """The source that a decoder attends to beside its own text; computed once, for every step.

    A batch whose rows are several continuations of each text (beams) has one source a text:
    the rows of a text follow one another.

    Attributes:
        layers: keys and values of each layer, `(B, K, T, D)`.
        lengths: int `(B,)`; valid tokens of each row, right padded; None where all are.
    """

    layers: Sequence[LayerCache]
    lengths: Tensor | None = None


@dataclass(frozen=True, slots=True)
class StepLengths:
    """How long each row is after a step.

    Attributes:
        seqlens_k: int32 `(B,)`; valid tokens of each row after this step, minus one.
        total: int32 `()`; the longest row after this step.
        seen: `total` as a number, if it is known: no slot after it takes part in this step.
    """

    seqlens_k: Tensor
    total: Tensor
    seen: int | None = None

    @staticmethod
    def first(tokens: int) -> "StepLengths":
        """The step of a first prompt by itself, of so many tokens."""
        last = torch.tensor([tokens - 1], dtype=torch.int32)
        return StepLengths(last, torch.tensor(tokens, dtype=torch.int32), tokens)

    def reach(self, capacity: int) -> int:
        """How many slots of a buffer to attend to: T."""
        return capacity if self.seen is None else self.seen

    def positions(self, new_tokens: int) -> Tensor:
        """Position of each new token, int64 `(B, S)`, as the nodes that index by them need.

        A step whose total equals its own length is a first prompt: every row starts at 0, and
        shorter rows are padded on the right.
        """
        if is_one(new_tokens):  # far fewer nodes
            return self.seqlens_k.unsqueeze(1).long()
        # Only in a first prompt are there fewer tokens than the step is long.
        past_B = (self.seqlens_k.long() + 1 - new_tokens).clamp(min=0)
        return past_B[:, None] + torch.arange(new_tokens, device=past_B.device)


Pick = Callable[[Tensor], Tensor]
"""Some tokens `(B, N, ...)` of `(B, S, ...)`."""


def same(x: Tensor) -> Tensor:
    """All tokens, as they are."""
    return x


def empty_cache(config: DecoderConfig, *, batch: int, capacity: int) -> list[Memory]:
    """Zeroed float32 tensors for every layer; of keys and values, buffers."""
    return [empty_memory(block.mixer, batch=batch, capacity=capacity) for block in config.blocks]


def empty_memory(mixer: Mixer, *, batch: int, capacity: int) -> Memory:
    """Zeroed float32 tensors for the states of a layer, in their order."""
    made = [torch.zeros(batch, *state.sizes(capacity)) for state in mixer.states]
    return as_memory(mixer, made)


def as_memory(mixer: Mixer, tensors: Sequence[Tensor]) -> Memory:
    """What a layer carries, of the tensors of its states."""
    return LayerCache(*tensors) if isinstance(mixer, AttentionConfig) else tuple(tensors)


def capacity_of(cache: Sequence[Memory]) -> int:
    """Tokens that the buffers of keys and values have room for; 0 where no layer has any."""
    return next((layer.key.shape[2] for layer in cache if isinstance(layer, LayerCache)), 0)
