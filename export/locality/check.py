"""Refuses a module that reads anything without its state that a step of the bundle does not see.

Shape letters: R texts of equal length, T tokens of each.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from time import thread_time

import torch
from torch import Tensor, nn

from ortolan.export.locality.branches import check_branches
from ortolan.export.locality.differences import (
    CLOSE,
    SAME,
    Difference,
    Lines,
    difference,
    first_difference,
    tolerance_of,
)
from ortolan.export.locality.memory import check_memory, differs, forgetful, random_refusal
from ortolan.export.locality.perturbation import PROBLEMS, cause, other_ids
from ortolan.export.locality.runs import Outcome, Runs, called, own_copy, restored_random
from ortolan.export.locality.standin import Numbers
from ortolan.export.trace.module import Carried
from ortolan.modeling.errors import ConfigError

WORK = 1 << 35
"""Largest number of parameters times tokens of the first text; larger modules are not run."""

NUMBERS = 1 << 25
"""Largest number of logits of a text, or of extended numbers that its tokens see."""

FIRST = 16
"""Tokens of the first text, which is read in every way."""

GROWTH = 4
"""How many times longer each further text is, up to the context."""

SECONDS = 1.5
"""Time after which no longer text, and no text with further ids, is begun."""

_OF_PARTS = (
    "carries something across tokens that no state does",
    "Check masks and positions, and that every step recalls what the one before it kept",
)
"""What is wrong with a module that computes something else in parts, and what to do."""

Run = Callable[[Runs], Outcome]


def check_locality(
    live: nn.Module, empty: nn.Module, carried: Carried, *, context: int, special: Sequence[int]
) -> None:
    """Refuse a module that does not compute the same in whichever calls its tokens arrive.

    `empty` has its parameters on `meta`; `live` has its weights, and its attributes stay as they
    are. `context` tokens have to fit; `special` ids are likely to be treated in another way.
    """
    size = sum(parameter.numel() for parameter in live.parameters())
    tokens = min(context, FIRST)
    with restored_random():
        check_branches(empty, context=context, takes_one=carried.takes_one)
        if size * tokens > WORK:
            return
        check, ids = _Check(Runs(own_copy(live), carried)), probe_ids(carried.vocab_size, special)
        started, longest = thread_time(), min(context, NUMBERS // carried.vocab_size)
        check.first(_taken(ids, tokens))
        seen, last = tokens, 0.0
        while tokens < longest or seen < carried.vocab_size:
            longer = max(tokens, min(tokens * GROWTH, longest))
            begun = thread_time()
            if begun + last * longer / tokens > started + SECONDS:
                break
            tokens, seen = longer, seen + longer
            check.text(_taken(ids, tokens))
            last = thread_time() - begun
        check.again()


def probe_ids(vocab_size: int, special: Sequence[int]) -> Iterator[int]:
    """Every id in a random order, again and again; special ones and the ends first."""
    random = torch.Generator().manual_seed(0)
    ends = [*special, 0, 1, vocab_size - 2, vocab_size - 1]
    early = dict.fromkeys(each for each in ends if 0 <= each < vocab_size)
    late = [i for i in torch.randperm(vocab_size, generator=random).tolist() if i not in early]
    yield from (*early, *late)
    while True:
        yield from torch.randperm(vocab_size, generator=random).tolist()


def _taken(ids: Iterator[int], tokens: int) -> Tensor:
    """A text `(1, T)` of the next ids."""
    return torch.tensor([[next(ids) for _ in range(tokens)]])


class _Check:
    """The comparisons of one module's runs."""

    def __init__(self, runs: Runs) -> None:
        self._runs, self._carried = runs, runs.carried
        self._name, self._vocab_size = type(runs.module).__name__, runs.carried.vocab_size
        floats = (p.dtype for p in runs.module.parameters() if p.is_floating_point())
        dtype = next(floats, torch.float32)
        self._close, self._same = (tolerance_of(dtype, most) for most in (CLOSE, SAME))
        self._joins = False  # tokens of a call, to continue a recalled state
        self._read: list[tuple[Tensor, Tensor]] = []  # ids and logits of the first and last text

    def first(self, ids: Tensor) -> None:
        """Read a short text in every way: in calls of one token, in a batch, with other tokens."""
        tokens, others = ids.shape[1], other_ids(ids, self._vocab_size)
        check_memory(self._runs.module, ids, others, self._same)
        self._joins = self._runs.joins(ids)
        if not self._joins:
            self._over_a_stand_in(ids, [1] * tokens)
        self._rows(ids, others)
        if tokens > 1:
            self._later_tokens(ids, others)
        if self._joins:  # which says less about the cause
            self._over_a_stand_in(ids, [1] * tokens)
        once = self._in_parts(ids, [tokens])
        for sizes in [[1] * tokens] if self._carried.takes_one else [[1] * tokens, _cuts(tokens)]:
            self._kept(ids, sizes, once, self._in_parts(ids, sizes))
        if tokens > 1:
            self._together(ids, others)

    def text(self, ids: Tensor) -> None:
        """Read a long text at once and in parts, with the state and with a stand-in."""
        tokens = ids.shape[1]
        sizes = [1] * tokens if self._carried.takes_one else _cuts(tokens)
        self._over_a_stand_in(ids, sizes)
        self._in_parts(ids, sizes)

    def again(self) -> None:
        """Read the first and the last text again, after many calls, with other random numbers."""
        module = self._runs.module
        for ids, logits in self._read:
            if differs(logits, called(module, ids), self._same):
                raise forgetful(self._name)
            if differs(logits, called(module, ids, seed=1), self._same):
                raise random_refusal(module, ids)

    # --- comparisons ------------------------------------------------------------------------------

    def _over_a_stand_in(self, ids: Tensor, sizes: Sequence[int]) -> None:
        """Compare tokens with the same tokens elsewhere, between calls of a state that is fixed."""
        numbers = Numbers(ids.shape[1])
        if self._joins:
            self._parts(
                ids,
                sizes,
                lambda runs: runs.stood_in(ids, numbers),
                lambda runs: runs.stood_in(ids, numbers, sizes),
            )
            return
        width = sum(self._carried.extended.values())
        ids = ids[:, : max(2, math.isqrt(NUMBERS // max(width, 1)))] if width else ids

        def among_others(runs: Runs) -> Outcome:
            return runs.stood_in(ids, numbers)

        def alone(runs: Runs) -> Outcome:
            return runs.alone(ids, numbers)

        found = self._compared(among_others, alone, self._same)
        if found is not None:
            kind = cause(self._runs, ids, found.token, self._vocab_size) or "places"
            problem, advice = PROBLEMS[kind]
            line = self._line(among_others, alone, found, self._same)
            raise ConfigError(
                f"{self._name}: forward {problem} between calls of the state{line}. "
                f"This changes {found}, when each token is computed alone. {advice}."
            )

    def _in_parts(self, ids: Tensor, sizes: Sequence[int]) -> Outcome:
        """Compare one call without a cache with several over one; return what these computed."""
        whole, parts = self._parts(
            ids,
            sizes,
            lambda runs: runs.whole(ids),
            lambda runs: runs.in_parts(ids, sizes),
        )
        self._read = [*self._read[:1], (ids, whole.outputs["the logits"])]
        return parts

    def _parts(
        self, ids: Tensor, sizes: Sequence[int], whole: Run, parts: Run
    ) -> tuple[Outcome, Outcome]:
        one, several = whole(self._runs), parts(self._runs)
        found = self._difference(one, several, self._close, whole)
        if found is None:
            return one, several
        line = self._line(whole, parts, found, self._close)
        kind = None if self._joins else cause(self._runs, ids, found.token, self._vocab_size)
        problem, advice = _OF_PARTS if kind is None else PROBLEMS[kind]
        raise ConfigError(
            f"{self._name}: forward {problem}{line}. This changes {found}, after {_calls(sizes)}. "
            f"{advice}."
        )

    def _kept(self, ids: Tensor, sizes: Sequence[int], once: Outcome, several: Outcome) -> None:
        """Compare the states after one call with those after several."""
        found = self._difference(
            _states(once),
            _states(several),
            self._close,
            lambda runs: _states(runs.in_parts(ids, [ids.shape[1]])),
        )
        if found is not None:
            raise ConfigError(
                f"{self._name}: {found.output} differs by {found.amount:.2g} (roundings: at most "
                f"{found.allowed:.2g}) after {_calls(sizes)}: it counts or weighs calls, not "
                "tokens. Keep only what follows from the tokens so far, such as `n + ids.shape[1]` "
                "instead of `n + 1`."
            )

    def _rows(self, ids: Tensor, others: Tensor) -> None:
        """Compare a text alone with the same in a batch, whose other row changes."""

        def first_of(batch: Tensor) -> Run:
            return lambda runs: _part(runs.whole(batch), slice(1), slice(None))

        both = first_of(torch.cat([ids, others]))
        for batch, tolerance in ((ids, self._close), (ids.expand(2, -1), self._same)):
            found = self._compared(first_of(batch), both, tolerance)
            if found is not None:
                line = self._line(first_of(batch), both, found, tolerance)
                raise ConfigError(
                    f"{self._name}: the first row of a batch changes when the second does{line}: "
                    f"{found}. Rows must not affect each other: are axes swapped (the state "
                    "expects the batch first), or is there a mean or norm over the batch?"
                )

    def _later_tokens(self, ids: Tensor, others: Tensor) -> None:
        """Compare the beginning of a text with the same before other tokens."""
        tokens = ids.shape[1]
        for start in dict.fromkeys((1, tokens // 2, tokens - 1)):
            changed = torch.where(torch.arange(tokens) < start, ids, others)

            def before(runs: Runs, start: int = start) -> Outcome:
                return _part(runs.whole(ids), slice(None), slice(start))

            def after(runs: Runs, start: int = start, changed: Tensor = changed) -> Outcome:
                return _part(runs.whole(changed), slice(None), slice(start))

            found = self._compared(before, after, self._same)
            if found is not None:
                raise ConfigError(
                    f"{self._name}: position {found.token} changes when token {start} and later "
                    f"ones do{self._line(before, after, found, self._same)}: {found}. A token must "
                    "not see later ones: use state.attend, or apply the causal mask that "
                    "state.extend returns."
                )

    def _together(self, ids: Tensor, others: Tensor) -> None:
        """Compare the last tokens of texts with the same in one batch, at other positions."""
        texts = [ids, others[:, : max(2, ids.shape[1] // 2)]]
        together = self._runs.together(texts)
        for row, text in enumerate(texts):

            def alone(runs: Runs, text: Tensor = text) -> Outcome:
                return _part(runs.whole(text), slice(None), slice(-1, None))

            batch = _part(together, slice(row, row + 1), slice(None))
            found = self._difference(alone(self._runs), batch, self._close, alone)
            if found is not None:
                raise ConfigError(
                    f"{self._name}: the last logits of a text differ by {found.amount:.2g} "
                    f"(roundings: at most {found.allowed:.2g}) in a batch with a text of another "
                    "length. Every row has positions and states of its own: use all rows of "
                    "state.positions(ids), which is (batch, tokens)."
                )

    def _compared(self, one: Run, other: Run, tolerance: float) -> Difference | None:
        return self._difference(one(self._runs), other(self._runs), tolerance, one)

    def _difference(
        self, one: Outcome, other: Outcome, tolerance: float, run: Run
    ) -> Difference | None:
        """The difference of two outcomes, of which the first is that of a run."""
        return difference(
            one.outputs,
            other.outputs,
            tolerance,
            noisy=lambda: [run(noisy).outputs for noisy in self._runs.noisy()],
        )

    def _line(self, one: Run, other: Run, found: Difference, tolerance: float) -> str:
        """The user's line where the difference begins, if it can be found."""
        lines = Lines(found.token), Lines(found.token)
        for run, recorded in zip((one, other), lines, strict=True):
            run(replace(self._runs, lines=recorded))
        return first_difference(*lines, tolerance, joins=self._joins)


def _part(outcome: Outcome, rows: slice, tokens: slice) -> Outcome:
    outputs = {name: x[rows, tokens] for name, x in outcome.outputs.items()}
    return replace(outcome, outputs=outputs)


def _states(outcome: Outcome) -> Outcome:
    """The states of fixed size, as outputs of one token."""
    states = {f"state {name!r}": value[:, None] for name, value in outcome.kept.items()}
    return replace(outcome, outputs=states)


def _cuts(tokens: int) -> list[int]:
    """Sizes of calls that end anywhere, some after one token."""
    random = torch.Generator().manual_seed(tokens)
    cuts = torch.randperm(max(1, tokens - 1), generator=random)[:4] + 1
    ends = sorted({0, *cuts.tolist(), *(cuts[:2] + 1).tolist(), tokens - 1, tokens})
    return [end - start for start, end in pairwise(ends) if end <= tokens]


def _calls(sizes: Sequence[int]) -> str:
    calls = "one call over a cache" if len(sizes) == 1 else f"{len(sizes)} calls instead of one"
    return f"{sum(sizes)} tokens in {calls}"
