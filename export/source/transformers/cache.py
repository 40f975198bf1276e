"""A cache of transformers that holds nothing: the state of the step does."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from ortolan.export.source.transformers.attention import Step


class StateCache(Cache):
    """Keys and values come back as they were given; other states are recalled and kept.

    A model always takes its way for several tokens, which is right for one as well.
    """

    def __init__(self, step: Step) -> None:
        super().__init__(layers=[])
        self._step = step

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """The new keys and values alone: whatever attends has the others."""
        self._step.cached += 1
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """None are held here."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Of the new tokens."""
        return query_length, 0

    def is_recording_past(self, layer_idx: int) -> bool:
        """A convolution is computed over its state and the new tokens, not in place."""
        return True

    def has_previous_state(self, *_: Any, **__: Any) -> bool:
        """There is always a state; at the start it is zeros."""
        return True

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """`update_conv_state` gives all that is needed."""
        return None

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: Any,
    ) -> Tensor:
        """The last inputs of a convolution before the new ones, then the new, `(B, C, K + S)`."""
        if conv_kernel_size is None:
            raise NotImplementedError("a convolution that does not say how wide it is")
        name = _name("convolution", layer_idx, state_idx)
        past = self._step.state.recall(name, (conv_states.shape[1], conv_kernel_size), conv_states)
        whole = torch.cat((past, conv_states), -1)
        self._step.keeps = True
        self._step.state.keep(name, whole[..., -conv_kernel_size:])
        return whole

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """None: `recurrence` recalls it, and is told here which."""
        self._step.recurrence = _name("recurrence", layer_idx, state_idx)
        self._step.recurrences = 0

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> Tensor:
        """What `recurrence` has kept already."""
        if not self._step.recurrences:
            raise NotImplementedError("a recurrence that no node computes")
        self._step.keeps = True
        return recurrent_states


def _name(kind: str, layer: int, number: int) -> str:
    """The name of a state; most layers have one of a kind."""
    return f"{layer}.{kind}" + (f".{number}" if number else "")
