"""Modules that remember calls, or see later tokens, are refused; others are not."""

import random
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.export.locality.test_check import check
from tests.export.locality.user_modules import WIDTH, Base
from torch import Tensor, nn

from ortolan.export.source.module import without_memory
from ortolan.export.trace.module import find_carried
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.state import State

COUNT = 0


class Remembering(Base):
    """Applies a change that may use its attributes, which hold one of each kind."""

    shared: ClassVar[int] = 0
    counted: Tensor

    def __init__(self, change: Callable[[Any, Tensor, State], Tensor]) -> None:
        super().__init__()
        self.change = change
        self.number, self.past, self.sums = 0, [0], {"seen": 0}
        self.loose, self.table, self.kept = torch.zeros(WIDTH), None, None
        self.register_buffer("counted", torch.zeros(1))
        self.normed = nn.BatchNorm1d(WIDTH)

    def forward(self, ids: Tensor, state: State) -> Tensor:
        x = self.change(self, self.block(self.embed(ids), state), state)
        out: Tensor = self.head(x)
        return out


def number(own: Any, x: Tensor, state: State) -> Tensor:
    own.number += x.shape[1]
    return x if own.number < 1000 else -x


def listed(own: Any, x: Tensor, state: State) -> Tensor:
    own.past.append(x[:, -1])
    return x


def in_dict(own: Any, x: Tensor, state: State) -> Tensor:
    own.sums["seen"] += 1
    return x


def replaced_buffer(own: Any, x: Tensor, state: State) -> Tensor:
    own.counted = own.counted + 1
    return torch.where(own.counted > 1000, -x, x)


def changed_buffer(own: Any, x: Tensor, state: State) -> Tensor:
    own.counted += 1
    return torch.where(own.counted > 1000, -x, x)


def stored_tensor(own: Any, x: Tensor, state: State) -> Tensor:
    y: Tensor = x + own.loose
    own.loose = x[0, -1]
    return y


def of_class(own: Any, x: Tensor, state: State) -> Tensor:
    type(own).shared += 1
    return x


def of_file(own: Any, x: Tensor, state: State) -> Tensor:
    global COUNT
    COUNT += 1
    return x


def stored_state(own: Any, x: Tensor, state: State) -> Tensor:
    own.kept = own.kept or state
    return x


def training_norm(own: Any, x: Tensor, state: State) -> Tensor:
    out: Tensor = own.normed.train()(x.transpose(1, 2)).transpose(1, 2)
    return out


def closure() -> Callable[[Any, Tensor, State], Tensor]:
    calls: list[int] = []

    def change(own: Any, x: Tensor, state: State) -> Tensor:
        calls.append(1)
        return x * len(calls)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (number, r"reads self\.number and changes it"),
        (listed, r"reads self\.past and changes it"),
        (in_dict, r"reads self\.sums and changes it"),
        (replaced_buffer, r"reads self\.counted and changes it"),
        (changed_buffer, r"reads self\.counted and changes it"),
        (stored_tensor, r"reads self\.loose and changes it"),
        (training_norm, r"reads self\.normed\.\w+ and changes it"),
        (of_class, r"every call changes Remembering\.shared"),
        (of_file, r"every call changes .*test_memory\.COUNT"),
        (stored_state, r"the state of an earlier call from self\.kept"),
        (closure(), "a second call on the same ids computes other logits"),
    ],
)
def test_what_a_module_remembers_between_calls_is_named(change: Any, message: str) -> None:
    module = Remembering(change)
    with pytest.raises(ConfigError, match=message):
        check(module)
    assert module.number == 0
    assert not module.counted.any()


def lazy(own: Any, x: Tensor, state: State) -> Tensor:
    if own.table is None:
        own.table = torch.linspace(0, 1, WIDTH)
    own.loss = x.mean()  # stored, and never read
    own.counted = own.table[:1] * 2
    own.latest = x
    out: Tensor = own.latest * own.table + own.counted
    return out


def test_tables_made_once_and_stored_losses_are_not_memory() -> None:
    check(Remembering(lazy))


def noise(own: Any, x: Tensor, state: State) -> Tensor:
    return x + torch.randn_like(x)


@pytest.mark.parametrize(
    ("change", "operator"),
    [
        (noise, r", first in `return x \+ torch.randn_like\(x\)` \(test_memory.py, line"),
        pytest.param(
            *(lambda own, x, state: F.dropout(x, 0.1), r", first in `.*F.dropout"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(lambda own, x, state: x + np.random.randn(), r", first in `.*rand.* Leave noise out"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(lambda own, x, state: x * random.random(), r", first in `.*rand.* Leave noise out"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_random_module_is_not_called_a_mixing_one(change: Any, operator: str) -> None:
    module = Remembering(change)
    carried = find_carried(without_memory(module))
    before = torch.get_rng_state(), random.getstate()
    with pytest.raises(ConfigError, match="forward is random" + operator):
        check(module, carried)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_ids_changed_in_place_are_refused() -> None:
    class Clamped(Base):
        def before(self, ids: Tensor, state: State) -> Tensor:
            return super().before(ids.clamp_(max=9), state)

    with pytest.raises(ConfigError, match="changes its ids in place"):
        check(Clamped())


def without_mask(own: Any, x: Tensor, state: State) -> Tensor:
    keys, _ = state.extend("keys", x)
    return x + (x @ keys.transpose(1, 2)).softmax(-1) @ keys


def mean_of_rows(own: Any, x: Tensor, state: State) -> Tensor:
    keys, seen = state.extend("keys", x.mean(0, keepdim=True).expand_as(x))
    return x + torch.where(seen, (x @ keys.transpose(1, 2)), 0.0) @ keys


def counted_calls(own: Any, x: Tensor, state: State) -> Tensor:
    calls = state.recall("calls", (1,), x)
    state.keep("calls", calls + 1)
    return torch.where(calls[:, None] > 90, -x, x)


def forgotten_recall(own: Any, x: Tensor, state: State) -> Tensor:
    state.recall("sum", (WIDTH,), x)
    sums = x.cumsum(1)
    state.keep("sum", sums[:, -1])
    return sums


def counted_tokens(own: Any, x: Tensor, state: State) -> Tensor:
    count = state.recall("count", (1,), x)
    state.keep("count", count + x.shape[1])
    return x


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_mask, r"position \d+ changes when token \d+ .* causal mask"),
        (mean_of_rows, "mixes the rows of a batch .* in mean_of_rows"),
        (counted_calls, "state 'calls' differs by .* after 16 tokens in 16 calls instead of one"),
        (forgotten_recall, "no state does.* after 16 tokens in 16 calls"),
    ],
)
def test_a_perturbation_names_what_is_wrong_with_the_steps(change: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(Remembering(change))


def test_a_count_of_tokens_is_no_count_of_calls() -> None:
    check(Remembering(counted_tokens))
