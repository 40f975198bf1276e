"""Small user modules that read other tokens, rows or calls without their state."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from tests.export.locality.user_modules import VOCAB, WIDTH, Base, LearnedPositions, Summed, Trigram
from torch import Tensor

from ortolan.modeling.state import State, WholeState

Change = Callable[[Tensor, Tensor], Tensor]


def _shift(x: Tensor, by: int) -> Tensor:
    return F.pad(x, (0, 0, by, 0))[:, : x.shape[1]]


def _branch_on_length(ids: Tensor, x: Tensor) -> Tensor:
    return x * 2 if ids.shape[1] > 200 else x


def _one_length(ids: Tensor, x: Tensor) -> Tensor:
    return x * 2 if ids.shape[1] == 333 else x


def _from_place_200(ids: Tensor, x: Tensor) -> Tensor:
    return torch.where((torch.arange(x.shape[1]) > 200)[:, None], x * 2, x)


def _written(ids: Tensor, x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1:] += x[:, :-1]
    return y


def _trained_norm(ids: Tensor, x: Tensor) -> Tensor:
    return F.batch_norm(x.transpose(1, 2), None, None, training=True).transpose(1, 2)


def _own_attention(ids: Tensor, x: Tensor) -> Tensor:
    return x + F.scaled_dot_product_attention(x, x, x, is_causal=True)


DISHONEST: dict[str, tuple[Change, str]] = {
    "200 tokens back": (lambda ids, x: x + _shift(x, 200), "reads other tokens"),
    "600 tokens back": (lambda ids, x: x + _shift(x, 600), "reads other tokens"),
    "a branch on the length": (_branch_on_length, "a branch on the number"),
    "a branch on one length": (_one_length, "a branch on the number"),
    "another rule from place 200": (_from_place_200, "place in the chunk"),
    "a flag once token 7 was seen": (
        lambda ids, x: x + (ids == 7).cumsum(1).clamp(max=1)[..., None],
        "reads other tokens",
    ),
    "whether token 7 is there": (
        lambda ids, x: x + (ids == 7).any(1)[:, None, None],
        "reads other tokens",
    ),
    "whether token 7 is anywhere": (
        lambda ids, x: x * torch.where((ids == 7).any(), 2.0, 1.0),
        "reads other tokens|row",
    ),
    "the largest of all": (lambda ids, x: x / x.max(), "rows|reads other tokens"),
    "the largest so far": (lambda ids, x: x.cummax(1).values, "reads other tokens"),
    "a mean over the batch": (
        lambda ids, x: x + x.mean(0, keepdim=True),
        "mixes the rows of a batch",
    ),
    "a mean over the tokens": (
        lambda ids, x: x + x.mean(1, keepdim=True),
        "reads other tokens .*x.mean.1, keepdim=True",
    ),
    "the reverse order": (lambda ids, x: x + x.flip(1), "reads other tokens"),
    "batch norm that trains": (_trained_norm, "reads other tokens|row"),
    "rolled by 300": (lambda ids, x: x + x.roll(300, 1), "reads other tokens"),
    "a cumulative sum": (lambda ids, x: x + x.cumsum(1) / 99, "reads other tokens"),
    "sorted over the tokens": (lambda ids, x: x.sort(1).values, "reads other tokens"),
    "the last token for all": (lambda ids, x: x + x[:, -1:], "reads other tokens"),
    "places counted from 0": (
        lambda ids, x: x + torch.arange(x.shape[1])[:, None] / 99,
        "place in the chunk .*arange",
    ),
    "the token before, in place": (_written, "reads other tokens"),
    "attention of its own": (_own_attention, "reads other tokens .* in _own_attention"),
    "a product of tokens": (lambda ids, x: x + (x @ x.transpose(1, 2)) @ x, "reads other tokens"),
    "a convolution": (
        lambda ids, x: F.conv1d(
            F.pad(x.transpose(1, 2), (2, 0)), torch.ones(WIDTH, WIDTH, 3) / 48
        ).transpose(1, 2),
        "reads other tokens",
    ),
    "rows flattened": (lambda ids, x: x + x.flatten(0, 1).softmax(0).view(x.shape), "row"),
    "the other row": (lambda ids, x: x + x.roll(1, 0), "mixes the rows"),
    "pooled tokens": (
        lambda ids, x: F.avg_pool1d(x.transpose(1, 2), 3, 1, 1).transpose(1, 2),
        "reads other tokens .*avg_pool",
    ),
    "a small part of the mean": (
        lambda ids, x: x + x.mean(1, keepdim=True) / 1000,
        "reads other tokens",
    ),
    "a small part of the token before": (
        lambda ids, x: x + _shift(x, 1) / 1000,
        "reads other tokens",
    ),
    "only after token 7": (
        lambda ids, x: x + (_shift(ids[..., None], 1) == 7),
        "reads other tokens",
    ),
    "once the last id was seen": (
        lambda ids, x: x + (ids == VOCAB - 1).cumsum(1)[..., None],
        "reads other tokens",
    ),
    "padding counted": (
        lambda ids, x: x / (ids != 0).sum(1)[:, None, None],
        "reads other tokens|place",
    ),
    "from place 64 on the token before": (
        lambda ids, x: torch.where((torch.arange(x.shape[1]) >= 64)[:, None], _shift(x, 1), x),
        "reads other tokens|place",
    ),
    "other numbers in even lengths": (
        lambda ids, x: x * 2 if ids.shape[1] % 2 == 0 else x,
        "a branch on the number",
    ),
    "the length as a tensor": (
        lambda ids, x: x + torch.ones(x.shape[1]).sum() / 100,
        "place in the chunk|a branch|reads",
    ),
    "divided by the rows": (lambda ids, x: x / ids.shape[0], "row"),
    "a flag once a value was large": (
        lambda ids, x: x + (x[..., :1] > 20).cumsum(1) / 9,
        "reads other tokens|place in the chunk",
    ),
    "a window of its own": (
        lambda ids, x: x + F.pad(x, (0, 0, 7, 0)).unfold(1, 8, 1).mean(-1),
        "reads other tokens",
    ),
}
"""A function of ids `(B, S)` and vectors `(B, S, E)`, and a pattern of its refusal."""

OF_VALUES = "a flag once a value was large"
"""Embeddings never have such values: it is dishonest only after attention."""


class Dishonest(Base):
    """Applies a change before its block, or after it."""

    def __init__(self, change: Change, *, late: bool = False) -> None:
        super().__init__()
        self.change, self.late = change, late

    def forward(self, ids: Tensor, state: State) -> Tensor:
        x: Tensor = self.embed(ids)
        x = self.block(x if self.late else self.change(ids, x), state)
        out: Tensor = self.head(self.change(ids, x) if self.late else x)
        return out


class FlagWithoutState(Summed):
    """Honest with one state, plus a flag that no state continues."""

    def after(self, x: Tensor) -> Tensor:
        return x + (x[..., :1] > 5).cumsum(1).clamp(max=1)


class FirstPositions(LearnedPositions):
    """Positions of the first row for all."""

    def forward(self, ids: Tensor, state: State) -> Tensor:
        x = self.embed(ids) + self.places(state.positions(ids)[:1])
        out: Tensor = self.head(self.block(x, state))
        return out


class LooksAhead(Base):
    """A mask that lets every token see the next one."""

    def before(self, ids: Tensor, state: State) -> Tensor:
        x: Tensor = self.embed(ids)
        vectors, seen = state.extend("vectors", x)
        seen = seen | F.pad(seen, (1, 0))[..., :-1]
        return x + torch.where(seen, x @ vectors.transpose(1, 2), 0.0) @ vectors / 99


class ChunkForgotten(Base):
    """A sum that every call begins anew."""

    def before(self, ids: Tensor, state: State) -> Tensor:
        x: Tensor = self.embed(ids)
        sums = x.cumsum(1) + state.recall("sum", (WIDTH,), x)[:, None]
        state.keep("sum", x.sum(1))
        return x + sums / 9


class DecayOfCalls(Base):
    """A sum that decays with every call, not with every token."""

    def before(self, ids: Tensor, state: State) -> Tensor:
        x: Tensor = self.embed(ids)
        sums = state.recall("sum", (WIDTH,), x)
        state.keep("sum", sums * 0.9 + x.sum(1))
        return x


class OtherThanInTraining(Base):
    """Another factor over a cache."""

    def before(self, ids: Tensor, state: State) -> Tensor:
        x: Tensor = self.embed(ids) * (1.0 if isinstance(state, WholeState) else 1.1)
        return x


class SmallBesideState(Summed):
    """A small part of the mean, which no state continues, beside a sum that one does."""

    def after(self, x: Tensor) -> Tensor:
        return x + x.cumsum(1) / 1000


class IdBesideState(Summed):
    """Whether the token before is 7, which no state continues, beside a sum that one does."""

    def before(self, ids: Tensor, state: State) -> Tensor:
        return super().before(ids, state) + (_shift(ids[..., None], 1) == 7)


class RarelyRandom(Base):
    """A few numbers are dropped in every call."""

    def after(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.003)


class EvenCalls(Base):
    """Every second call computes something else."""

    def __init__(self) -> None:
        super().__init__()
        calls: list[int] = []
        self.counted: Callable[[], None] = lambda: calls.append(1)
        self.count: Callable[[], int] = lambda: len(calls)

    def after(self, x: Tensor) -> Tensor:
        self.counted()
        return x if self.count() % 2 else -x


class ManyCalls(EvenCalls):
    """Something else from the 40th call on."""

    def after(self, x: Tensor) -> Tensor:
        self.counted()
        return x if self.count() < 40 else -x


class OneRow(Trigram):
    """A state for as many rows as there were in the first call."""

    def before(self, ids: Tensor, state: State) -> Tensor:
        return super().before(ids, state) + torch.zeros(len(ids), 1, 1)


DISHONEST_STATES: dict[type[Base], str] = {
    FlagWithoutState: "no state does.* in after",
    FirstPositions: "place in the chunk",
    OneRow: "a branch on the number .* in before",
    LooksAhead: "changes when token",
    ChunkForgotten: "no state does|counts or weighs calls",
    DecayOfCalls: "counts or weighs calls",
    OtherThanInTraining: "no state does",
    SmallBesideState: "no state does",
    IdBesideState: "no state does",
    RarelyRandom: "forward is random",
    EvenCalls: "remembers something",
    ManyCalls: "remembers something|no state does|changes when",
}
"""Modules that use a state, or others' calls, and patterns of their refusals."""
