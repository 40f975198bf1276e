"""State that a decoder carries from step to step.

Updates are functional, as in a traced graph: a step takes buffers and returns new ones.

Shape letters: B batch, S new tokens, T tokens of the source, K key/value heads, C capacity,
D head width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ortolan.modeling.config.block import AttentionConfig, Mixer
from ortolan.modeling.config.model import DecoderConfig
from ortolan.modeling.layers.sizes import is_one


class LayerCache(NamedTuple):
    """Keys and values of one layer, `(B, K, C, D)` each."""

    key: Tensor
    value: Tensor


Memory = tuple[Tensor, ...]
"""State of one layer, in the order of its config's `states`; for attention, a `LayerCache`."""


class CrossCache(NamedTuple):
    """Keys and values of the source of a decoder with cross-attention, computed once.

    In a beam search, several adjacent rows of the batch share one source.

    Attributes:
        layers: keys and values per layer, `(B, K, T, D)`.
        lengths: int `(B,)`; valid tokens per row, right padded; None if all are valid.
    """

    layers: Sequence[LayerCache]
    lengths: Tensor | None = None


@dataclass(frozen=True, slots=True)
class StepLengths:
    """Lengths of the rows after a step.

    Attributes:
        seqlens_k: int32 `(B,)`; valid tokens per row after this step, minus one.
        total: int32 `()`; length of the longest row after this step.
        seen: `total` as a Python number if it is known; later slots are then left out.
    """

    seqlens_k: Tensor
    total: Tensor
    seen: int | None = None

    @staticmethod
    def first(tokens: int) -> "StepLengths":
        """The first step of a single prompt of `tokens` tokens."""
        last = torch.tensor([tokens - 1], dtype=torch.int32)
        return StepLengths(last, torch.tensor(tokens, dtype=torch.int32), tokens)

    def reach(self, capacity: int) -> int:
        """Number of buffer slots to attend to, T."""
        return capacity if self.seen is None else self.seen

    def positions(self, new_tokens: int) -> Tensor:
        """Positions of the new tokens, int64 `(B, S)`.

        If `total` equals S, this is the prefill of a new batch: all rows start at 0, and shorter
        rows are right padded.
        """
        if is_one(new_tokens):  # needs far fewer nodes
            return self.seqlens_k.unsqueeze(1).long()
        # A row can be shorter than the step only in a prefill.
        past_B = (self.seqlens_k.long() + 1 - new_tokens).clamp(min=0)
        return past_B[:, None] + torch.arange(new_tokens, device=past_B.device)


Pick = Callable[[Tensor], Tensor]
"""Maps `(B, S, ...)` to N selected tokens, `(B, N, ...)`."""


def same(x: Tensor) -> Tensor:
    """Select all tokens."""
    return x


def empty_cache(config: DecoderConfig, *, batch: int, capacity: int) -> list[Memory]:
    """Zeroed float32 state of every layer."""
    return [empty_memory(block.mixer, batch=batch, capacity=capacity) for block in config.blocks]


def empty_memory(mixer: Mixer, *, batch: int, capacity: int) -> Memory:
    """Zeroed float32 state of one layer."""
    return as_memory(mixer, [torch.zeros(batch, *state.sizes(capacity)) for state in mixer.states])


def as_memory(mixer: Mixer, tensors: Sequence[Tensor]) -> Memory:
    """The state of a layer as its `Memory`: a `LayerCache` for attention."""
    return LayerCache(*tensors) if isinstance(mixer, AttentionConfig) else tuple(tensors)


def capacity_of(cache: Sequence[Memory]) -> int:
    """Token capacity of the key/value buffers; 0 if no layer has any."""
    return next((layer.key.shape[2] for layer in cache if isinstance(layer, LayerCache)), 0)
