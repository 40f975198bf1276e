"""The ways in which the tokens of a text reach a module, apart from the user's own.

Shape letters: R texts of equal length, T tokens of each.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from ortolan.export.locality.differences import Lines
from ortolan.export.locality.standin import Numbers, StandIn
from ortolan.export.trace.module import Carried, apart, untraceable
from ortolan.modeling.errors import ConfigError, ModelingError
from ortolan.modeling.layers.cache import LayerCache, StepLengths
from ortolan.modeling.state import CachedState, State

NOISE = 1e-6
"""Relative noise of weights, larger than float32's roundings."""

Cache = Mapping[tuple[Literal["key", "value", "grown", "kept"], int | str], Tensor]
"""States of texts so far: keys and values of a layer, or a named tensor."""


def own_copy(live: nn.Module) -> nn.Module:
    """Copy a module with its parameters shared and everything else its own."""
    module = apart(live).eval()
    for part in module.modules():
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else buffer.detach().clone()
        for name, value in vars(part).items():
            if isinstance(value, Tensor):
                vars(part)[name] = value.detach().clone()
    return module


def called(
    module: nn.Module,
    ids: Tensor,
    state: State | None = None,
    *,
    seed: int = 0,
    weights: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """The logits of ids `(B, S)`, which are on the CPU; by default of whole sequences.

    The module is from `own_copy`; `weights` stand in for its parameters.
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    parameter = next(module.parameters(), None)
    taken = ids.to("cpu" if parameter is None else parameter.device, copy=True)
    name, state = type(module).__name__, State.whole() if state is None else state
    try:
        with torch.no_grad():
            logits: Tensor = functional_call(module, dict(weights or {}), (taken, state))
    except ModelingError:
        raise
    except Exception as error:
        raise untraceable(name, "a call on the CPU", error) from error
    if not torch.equal(taken.cpu(), ids):
        raise ConfigError(
            f"{name}: forward changes its ids in place. Change a copy: `ids = ids.clone()`."
        )
    return logits.float()


@contextmanager
def restored_random() -> Iterator[None]:
    """Leave the global random numbers as they were."""
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a module computed for texts: what a stand-in received, and the logits, `(R, T, ...)`.

    `kept` are states of fixed size after the last token, `(R, ...)` each.
    """

    outputs: Mapping[str, Tensor]
    kept: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Runs:
    """Runs of one module, from `own_copy`; `weights` stand in for its parameters."""

    module: nn.Module
    carried: Carried
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    lines: Lines | None = None

    def noisy(self) -> Iterator["Runs"]:
        """Runs with other roundings: what they change is not known to this precision."""
        source = torch.Generator().manual_seed(0)
        for _ in range(3):
            weights = {
                name: weight * (1 + NOISE * torch.randn(weight.shape, generator=source).to(weight))
                if weight.is_floating_point()
                else weight
                for name, weight in self.module.named_parameters()
            }
            yield replace(self, weights=weights)

    def whole(self, ids: Tensor) -> Outcome:
        """All tokens in one call without a cache, as in training."""
        return Outcome({"the logits": self._call(ids, State.whole())})

    def in_parts(self, ids: Tensor, sizes: Sequence[int]) -> Outcome:
        """Tokens in calls of some sizes, over a cache."""
        cache, done, logits = self._empty(len(ids), ids.shape[1]), 0, []
        for size in sizes:
            before = torch.full((len(ids),), done)
            part, cache = self._step(ids[:, done : done + size], cache, before)
            logits.append(part)
            done += size
        kept = {name: cache["kept", name] for name in self.carried.kept}
        return Outcome({"the logits": torch.cat(logits, 1)}, kept)

    def together(self, texts: Sequence[Tensor]) -> Outcome:
        """Last tokens of texts `(1, T)` of any lengths, in one call over the caches of each."""
        longest, lengths = max(text.shape[1] for text in texts), [text.shape[1] for text in texts]
        zero, empty = torch.zeros(1, dtype=torch.int64), self._empty(1, longest)
        caches = [self._step(text[:, :-1], empty, zero)[1] for text in texts]
        cache: Cache = {name: torch.cat([each[name] for each in caches]) for name in empty}
        last = torch.cat([text[:, -1:] for text in texts])
        return Outcome({"the logits": self._step(last, cache, torch.tensor(lengths) - 1)[0]})

    def stood_in(self, ids: Tensor, numbers: Numbers, sizes: Sequence[int] = ()) -> Outcome:
        """Tokens in calls of some sizes, or in one, over a stand-in."""
        parts, memory, done = [], dict[str, Tensor](), 0
        for size in sizes or [ids.shape[1]]:
            positions = torch.arange(done, done + size).expand(len(ids), -1)
            state = StandIn(positions, numbers, memory)
            logits = self._call(ids[:, done : done + size], state, done)
            parts.append({**state.received, "the logits": logits})
            memory, done = {**memory, **state.kept}, done + size
        return Outcome({name: torch.cat([part[name] for part in parts], 1) for name in parts[0]})

    def alone(self, ids: Tensor, numbers: Numbers) -> Outcome:
        """Every token of a text in a row of its own, over a stand-in."""
        state = StandIn(torch.arange(ids.shape[1])[:, None], numbers, {})
        logits = self._call(ids.T.contiguous(), state)
        received = {**state.received, "the logits": logits}
        return Outcome({name: x.transpose(0, 1) for name, x in received.items()})

    def joins(self, ids: Tensor) -> bool:
        """Whether the module may join tokens of a call, to continue a recalled state."""
        state = StandIn(torch.arange(ids.shape[1])[None], Numbers(ids.shape[1]), {})
        self._call(ids, state)
        return state.has_recalled

    def _empty(self, rows: int, tokens: int) -> Cache:
        """The states before the first token of texts."""
        new, carried = self._like.new_zeros, self.carried
        layers = {
            layer: (rows, spec.num_kv_heads, tokens, spec.head_dim)
            for layer, spec in carried.layers.items()
        }
        return {
            **{("key", layer): new(shape) for layer, shape in layers.items()},
            **{("value", layer): new(shape) for layer, shape in layers.items()},
            **{("grown", name): new(rows, tokens, n) for name, n in carried.extended.items()},
            **{("kept", name): new(rows, *shape) for name, shape in carried.kept.items()},
        }

    def _step(self, ids: Tensor, cache: Cache, before: Tensor) -> tuple[Tensor, Cache]:
        """Logits of the tokens after `before` of each row, and the states after them."""
        last = (before + ids.shape[1] - 1).to(self._like.device, torch.int32)
        seen, carried = int(last.max()) + 1, self.carried
        total = torch.tensor(seen, dtype=torch.int32, device=last.device)
        state = CachedState(
            StepLengths(last, total, seen),
            {
                layer: LayerCache(cache["key", layer], cache["value", layer])
                for layer in carried.layers
            },
            {name: cache["kept", name] for name in carried.kept},
            None,
            {name: cache["grown", name] for name in carried.extended},
        )
        logits = self._call(ids, state, int(before[0]))
        after: Cache = {
            **{("key", layer): present.key for layer, present in state.presents.items()},
            **{("value", layer): present.value for layer, present in state.presents.items()},
            **{("grown", name): value for name, value in state.extended.items()},
            **{("kept", name): value for name, value in state.kept.items()},
        }
        return logits, {**cache, **after}

    @cached_property
    def _like(self) -> Tensor:
        parameters = self.module.parameters()
        return next((p.detach() for p in parameters if p.is_floating_point()), torch.empty(0))

    def _call(self, ids: Tensor, state: State, done: int = 0) -> Tensor:
        """Call the module on the tokens after the first `done`."""
        with nullcontext() if self.lines is None else self.lines.of_call(ids.shape, done):
            return called(self.module, ids, state, weights=self.weights)
