"""Base class of mixers with a state of fixed size.

Shape letters: B batch, S new tokens, N selected tokens, E model width, M mixer channels.
"""

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor, nn

from ortolan.modeling.config import LayerState
from ortolan.modeling.layers.cache import Memory, Pick, StepLengths, same
from ortolan.modeling.layers.nodes import Rotary
from ortolan.modeling.layers.scores import Relative


class _Config(Protocol):
    @property
    def states(self) -> tuple[LayerState, ...]: ...


class FixedMemoryMixer(nn.Module, ABC):
    """A mixer of tokens whose state has a fixed size per sequence.

    It is called like attention, but ignores rotary and relative positions. Its rows must not be
    padded: padding would enter the state.
    """

    out: nn.Linear

    def __init__(self, config: _Config) -> None:
        super().__init__()
        self._states = config.states

    @abstractmethod
    def mix(self, x_BSE: Tensor, memory: Memory, positions: Tensor) -> tuple[Tensor, Memory]:
        """Input of the output projection, `(B, S, M)`, and the state after the last token.

        Args:
            x_BSE: new tokens.
            memory: state after the tokens before them, in the order of the config's states.
            positions: int `(B, S)` or `(1, S)`; positions of the new tokens.
        """

    def forward(
        self,
        x_BSE: Tensor,
        rotary: Rotary | None = None,
        relative: Relative | None = None,
        lengths: Tensor | None = None,
        *,
        past: Memory | None = None,
        step: StepLengths | None = None,
        pick: Pick = same,
    ) -> tuple[Tensor, Memory]:
        """Mix whole sequences, or continue from a past: `(B, S, E)`, and the updated state.

        Only the tokens that `pick` selects go through the output projection: `(B, N, E)`.
        """
        if lengths is not None:
            raise TypeError("a mixer with a state of fixed size cannot skip padding")
        if past is None or step is None:
            past = tuple(x_BSE.new_zeros(x_BSE.shape[0], *state.sizes(0)) for state in self._states)
            positions = torch.arange(x_BSE.shape[1], device=x_BSE.device)[None]
        else:
            positions = step.positions(x_BSE.shape[1])
        mixed, present = self.mix(x_BSE, past, positions)
        return self.out(pick(mixed)), present
