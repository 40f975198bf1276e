"""A state that returns the same numbers for a token in whichever call it arrives.

Over such a state, nothing of a token may depend on other tokens: every one can be computed alone.

Shape letters: B rows, S new tokens, T tokens of the whole text.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from ortolan.modeling.state import How, KeysAndValues, State

LOUD = (1.0, 30.0, 1.0, 1000.0)
"""Factors of the numbers of adjacent tokens, in the later half of a text. They reach rules on
values that a module of random weights would never produce."""


class Numbers:
    """Random numbers for every call of a state and every position."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._tables: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        self._random = torch.Generator().manual_seed(0)

    def table(self, call: str, shape: tuple[int, ...], *, loud: bool) -> Tensor:
        """Numbers `(T, *shape)` of a call, always the same."""
        if (call, shape) not in self._tables:
            table = torch.randn(self.tokens, *shape, generator=self._random)
            if loud:
                factors = torch.tensor(LOUD).repeat(-(-self.tokens // len(LOUD)))[: self.tokens]
                factors[: self.tokens // 2] = 1
                table *= factors.reshape(-1, *[1] * len(shape))
            self._tables[call, shape] = table
        return self._tables[call, shape]


class StandIn(State):
    """A state whose outputs do not depend on its inputs, and which records those.

    Attributes:
        received: inputs by call, `(B, S, ...)`.
        kept: tensors for the next call, where they are its `memory`.
        has_recalled: whether tokens may be joined between calls, to continue a recalled state.
    """

    def __init__(self, positions: Tensor, numbers: Numbers, memory: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._positions, self._numbers, self._memory = positions, numbers, memory
        self.received: dict[str, Tensor] = {}
        self.kept: dict[str, Tensor] = {}
        self.has_recalled = False

    def positions(self, ids: Tensor) -> Tensor:
        """Those of the new tokens, `(B, S)`."""
        return self._positions.to(ids.device)

    def convolve(self, name: str, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Any vectors."""
        return self._output(f"state.convolve({name!r})", {"x": x}, x, axis=2)

    def recur(
        self,
        name: str,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        decay: Tensor | None = None,
        rate: Tensor | None = None,
        scale: float = 1.0,
    ) -> Tensor:
        """Any vectors."""
        taken = {"query": query, "key": key, "value": value, "decay": decay, "rate": rate}
        return self._output(f"state.recur({name!r})", taken, value, axis=2)

    def _recall(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        self.has_recalled = True
        return self._memory.get(name, like.new_zeros(like.shape[0], *shape))

    def _keep(self, name: str, value: Tensor) -> None:
        self.kept[name] = value

    def _extend(self, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        self._record(f"state.extend({name!r})", {"x": x}, axis=1)
        reach = int(self._positions.max()) + 1
        table = self._numbers.table(f"state.extend({name!r})", tuple(x.shape[2:]), loud=False)
        seen = torch.arange(reach) <= self._positions[..., None]
        return table[:reach].to(x).expand(x.shape[0], -1, -1), seen.to(x.device)

    def _attend(self, layer: int, query: Tensor, own: KeysAndValues | None, how: How) -> Tensor:
        taken = dict(zip(("query", "key", "value"), (query, *(own or ())), strict=False))
        return self._output(f"state.attend({layer})", taken, query, axis=1)

    def _output(
        self, call: str, inputs: Mapping[str, Tensor | None], like: Tensor, *, axis: int
    ) -> Tensor:
        """Record the inputs of a call whose tokens lie on an axis; return numbers of a shape."""
        self._record(call, inputs, axis)
        shape = tuple(like.transpose(1, axis).shape[2:])
        table = self._numbers.table(f"{call} {len(self.received)}", shape, loud=True)
        return table[self._positions].to(like).transpose(1, axis).contiguous()

    def _record(self, call: str, inputs: Mapping[str, Tensor | None], axis: int) -> None:
        for kind, x in inputs.items():
            name = f"the {kind} of {call}"
            while name in self.received:  # shared keys
                name += " again"
            if x is not None:
                self.received[name] = x.detach().transpose(1, axis)
