"""What a decoder carries from step to step.

Updates are functional: a step takes the old buffers and returns new ones, as a traced graph does.

Shape letters: B batch, S new tokens, T tokens of the source, K key/value heads, C capacity,
D head width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ortolan.modeling.config import DecoderConfig
from ortolan.modeling.layers.sizes import is_one


class LayerCache(NamedTuple):
    """Keys and values of one layer, `(B, K, C, D)` each."""

    key: Tensor
    value: Tensor


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
        """Position of each new token, int `(B, S)`.

        A step whose total equals its own length is a first prompt: every row starts at 0, and
        shorter rows are padded on the right.
        """
        if is_one(new_tokens):  # a fifth of the nodes
            return self.seqlens_k.unsqueeze(1)
        # Only in a first prompt are there fewer tokens than the step is long.
        past_B = (self.seqlens_k.long() + 1 - new_tokens).clamp(min=0)
        return past_B[:, None] + torch.arange(new_tokens, device=past_B.device)


def empty_cache(config: DecoderConfig, *, batch: int, capacity: int) -> list[LayerCache]:
    """Zeroed float32 buffers for every layer."""
    return [
        LayerCache(
            torch.zeros(batch, a.num_kv_heads, capacity, a.head_dim),
            torch.zeros(batch, a.num_kv_heads, capacity, a.value_width),
        )
        for a in (block.attention for block in config.blocks)
    ]
