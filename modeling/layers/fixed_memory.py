"""What mixers have in common whose memory has a fixed size: whole texts, and steps after it.

Shape letters: B batch, S new tokens, N of them to go on with, E model width, M channels of the
mixer.
"""

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor, nn

from ortolan.modeling.config import LayerState
from ortolan.modeling.layers.cache import Memory, Pick, StepLengths, same
from ortolan.modeling.layers.lowering import Rotary
from ortolan.modeling.layers.scores import Relative


class _Config(Protocol):
    @property
    def states(self) -> tuple[LayerState, ...]: ...


class FixedMemoryMixer(nn.Module, ABC):
    """A mixer of tokens that remembers a fixed number of tensors of each text.

    It is called as attention is. Rotary and relative positions mean nothing to it; rows are not
    padded, since it would remember the padding.

    Args:
        config: says what is remembered.
    """

    out: nn.Linear

    def __init__(self, config: _Config) -> None:
        super().__init__()
        self._states = config.states

    @abstractmethod
    def mix(self, x_BSE: Tensor, memory: Memory, positions: Tensor) -> tuple[Tensor, Memory]:
        """What enters the last product, `(B, S, M)`, and the memory after the last token.

        Args:
            x_BSE: the new tokens.
            memory: after the tokens before them, in the order of the states.
            positions: int `(B, S)` or `(1, S)`; of the new tokens.
        """

    def forward(
        self,
        x_BSE: Tensor,
        rotary: Rotary | None = None,
        relative: Relative | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Whole texts, `(B, S, E)` to `(B, S, E)`."""
        if lengths is not None:
            raise TypeError("rows of a mixer with a memory of fixed size are not padded")
        memory = tuple(x_BSE.new_zeros(x_BSE.shape[0], *each.sizes(0)) for each in self._states)
        positions = torch.arange(x_BSE.shape[1], device=x_BSE.device)[None]
        out: Tensor = self.out(self.mix(x_BSE, memory, positions)[0])
        return out

    def step(
        self,
        x_BSE: Tensor,
        rotary: Rotary | None,
        past: Memory,
        step: StepLengths,
        relative: Relative | None = None,
        pick: Pick = same,
    ) -> tuple[Tensor, Memory]:
        """The same for new tokens after a memory, which comes back as it is after them.

        Of what was mixed, only the tokens that `pick` selects are read out: `(B, N, E)`.
        """
        mixed, present = self.mix(x_BSE, past, step.positions(x_BSE.shape[1]))
        return self.out(pick(mixed)), present
