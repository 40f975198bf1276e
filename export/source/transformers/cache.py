"""A cache for transformers that stores nothing: the state of the step does."""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from ortolan.export.source.transformers.attention import Step


class StateCache(Cache):
    """Returns new keys and values unchanged, and recalls and keeps other states.

    It makes a model take the path for several tokens, which is right for one as well.
    """

    def __init__(self, step: Step) -> None:
        super().__init__(layers=[])
        self._step = step

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """The new keys and values alone: attention has the earlier ones."""
        self._step.cached += 1
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Always 0."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """The sizes of the new tokens alone."""
        return query_length, 0

    def is_recording_past(self, layer_idx: int) -> bool:
        """Compute convolutions over the state and the new tokens, not in place."""
        return True

    def has_previous_state(self, *_: Any, **__: Any) -> bool:
        """Always: at the start the state is zeros."""
        return True

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """None: `update_conv_state` returns it with the new inputs."""
        return None

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: Any,
    ) -> Tensor:
        """The last inputs of a convolution and the new ones, `(B, C, K + S)`."""
        if conv_kernel_size is None:
            raise NotImplementedError("a convolution of unknown width")
        name = _name("convolution", layer_idx, state_idx)
        past = self._step.state.recall(name, (conv_states.shape[1], conv_kernel_size), conv_states)
        whole = torch.cat((past, conv_states), -1)
        self._step.keeps = True
        self._step.state.keep(name, whole[..., -conv_kernel_size:])
        return whole

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """None: `recurrence` recalls it. Note its name."""
        self._step.recurrence = _name("recurrence", layer_idx, state_idx)
        self._step.recurrences = 0

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> Tensor:
        """The state that `recurrence` has kept."""
        if not self._step.recurrences:
            raise NotImplementedError("a recurrence that is not replaced")
        self._step.keeps = True
        return recurrent_states


def _name(kind: str, layer: int, number: int) -> str:
    """The name of a state; most layers have one of each kind."""
    return f"{layer}.{kind}" + (f".{number}" if number else "")
