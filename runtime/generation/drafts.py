"""Drafts: guesses at the next tokens of a sequence, which the model checks in one call.

The model computes a few tokens in little more time than one. So a draft is appended to the
sequence, and the sampler chooses at each position as it would have anyway. As long as it chooses
what the draft says, the next position is already computed. A wrong guess costs time and changes
nothing, whether the sequence is greedy or sampled (arXiv:2211.17192, section 2; here the sampler's
own draw is the test, so a seed gives the same sequence with and without drafts).

Three sources of drafts: `PromptLookup` repeats what followed the last tokens when they occurred
before (Saxena 2023, "Prompt Lookup Decoding"); `DraftModel` asks a smaller model; `MtpHead` asks
the model's own head for further tokens (DeepSeek-AI 2024, arXiv:2412.19437, section 2.2).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ortolan.errors import OrtolanError
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.errors import InputError
from ortolan.runtime.inputs.ids import checked_ids

if TYPE_CHECKING:
    from ortolan.runtime.engine.runner import Runner
    from ortolan.runtime.generation.active_sequence import ActiveSequence

NGRAMS = (4, 2, 1)
"""Lengths of the matches to look for, longest first: a longer match is right more often.

A match of one token is seldom right. It proposes a single token, which costs nothing: a call
computes at least two positions in any case.
"""

SIZES = (2, 4, 6, 8, 12, 16, 24, 32)
"""Tokens in a call: even, and few enough sizes to learn the time of each."""

FIRST_GUESS = 0.6
"""Assumed probability that a guess is right, before any was checked."""

WEIGHT = 0.15
"""Weight of the newest observation in the moving averages of `Pace`."""

SLOPE = 0.12
"""Assumed cost of each token beyond two, as a share of a call of two, until measured."""


@runtime_checkable
class Drafter(Protocol):
    """Guesses for one sequence."""

    def extend(self, tokens: Sequence[int], /) -> None:
        """Append tokens that the sequence has got since the last call."""

    def propose(self, most: int, /) -> list[int]:
        """Guess up to `most` next tokens, as ids of the model; an empty list if there are none."""


class Draft(Protocol):
    """A source of guesses for any number of sequences."""

    def begin(self, prompt: Sequence[int], /) -> Drafter:
        """Start guessing for a sequence that continues this prompt."""


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Drafts from the sequence itself: what followed the last tokens when they occurred before.

    Free to compute. It pays where an answer repeats its prompt or itself: edits, extraction,
    structured data.
    """

    def begin(self, prompt: Sequence[int]) -> Drafter:
        """Start guessing for a sequence that continues this prompt."""
        return _Lookup(prompt)


class _Lookup:
    """The n-grams of one sequence, each with the place where it last ended."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}
        self._match: int | None = None
        self._size = 0
        self.extend(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._tokens.append(token)
            self._match = None
            for size in NGRAMS:
                if len(self._tokens) >= size:
                    gram = tuple(self._tokens[-size:])
                    if self._match is None:
                        self._match, self._size = self._ends.get(gram), size
                    self._ends[gram] = len(self._tokens)

    def propose(self, most: int) -> list[int]:
        if self._match is None:
            return []
        tokens, count = self._tokens, len(self._tokens)
        most = min(most, 1) if self._size == 1 else most
        draft: list[int] = []
        for place in range(self._match, self._match + most):
            # a match that overlaps the end goes on with its own guesses: a repetition
            draft.append(tokens[place] if place < count else draft[place - count])
        return draft


class DraftModel:
    """Drafts from a smaller model with the same tokenizer.

    Args:
        model: a `Decoder`. Each sequence gets its own `Session` of it.
    """

    def __init__(self, model: Any) -> None:
        if not hasattr(model, "session"):
            raise InputError(f"A draft model must be a Decoder (got {type(model).__name__}).")
        self.model = model

    def begin(self, prompt: Sequence[int]) -> Drafter:
        """Start guessing for a sequence that continues this prompt."""
        return _ModelDrafter(self.model.session(), prompt, self.model.manifest.context_length)


class _ModelDrafter:
    """The most probable tokens of a smaller model."""

    def __init__(self, session: Any, prompt: Sequence[int], context_length: int) -> None:
        self._session = session
        self._context_length = context_length
        self._tokens = list(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        self._tokens += tokens

    def propose(self, most: int) -> list[int]:
        session, tokens = self._session, self._tokens
        most = min(most, self._context_length - len(tokens) + 1)
        if most < 1:
            return []
        # keep the states of earlier guesses that were right; the last token is always computed
        same = 0
        for old, token in zip(session.tokens, tokens[:-1], strict=False):
            if old != token:
                break
            same += 1
        session.rewind(same)
        new, draft = tokens[same:], list[int]()
        while len(draft) < most:
            draft.append(int(session.append(new).argmax()))
            new = draft[-1:]
        return draft


@dataclass(frozen=True, slots=True)
class MtpHead:
    """Drafts from the head of the model that predicts further tokens (multi-token prediction).

    The bundle needs such a head: export the checkpoint with `--mtp`.
    """

    def begin(self, prompt: Sequence[int]) -> "HeadDrafter":
        """Start guessing for a sequence that continues this prompt."""
        return HeadDrafter(prompt)


class HeadDrafter:
    """The most probable tokens of a head, which reads the model's states.

    The state of each token and the token after it are a pair; after a pair, the head predicts the
    token that follows. Further guesses read the head's own states in place of the model's.

        tokens    a   b   c            the prompt a b, and c, which the model chose
        states    A   B                of the tokens that the model has computed
        pairs     A b, B c  ─►  d      the first guess, with the head's state C
                       C d  ─►  e      the second

    Tokens whose states came from a prefix cache have no pairs: the head begins after them.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens = list(prompt)
        self._runner: Runner | None = None
        self._states: list[NDArray[np.float32]] = []
        self._paired = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens that the sequence has got since the last call."""
        self._tokens += tokens

    def observe(self, start: int, states_SE: NDArray[np.float32], runner: "Runner") -> None:
        """Append states of the model."""
        if self._runner is None:
            self._runner, self._paired = runner.head(), start
        self._states.append(states_SE.copy())
        self._read(self._runner)

    def propose(self, most: int) -> list[int]:
        """Guess up to `most` next tokens, if the states of all others were observed."""
        runner = self._runner
        logits_V = None if runner is None else self._read(runner)
        if runner is None or logits_V is None:
            return []
        length = runner.slots.lengths[0]
        draft = [int(logits_V.argmax())]
        while len(draft) < min(most, 1 + runner.slots.context_length - length):
            state_1E = runner.hidden_SE[-1:]
            logits_1V = runner.chunk(0, draft[-1:], positions=[0], previous_SE=state_1E)
            draft.append(int(logits_1V[0].argmax()))
        runner.slots.rewind(length)
        return draft

    def _read(self, runner: "Runner") -> NDArray[np.float32] | None:
        """Append all pairs to the head; return the logits `(V,)` after the last one, if any."""
        following = self._tokens[self._paired + 1 :]
        if not following or not self._states:
            return None
        states_SE = np.concatenate(self._states)
        count = min(len(following), len(states_SE))
        self._states = [states_SE[count:]] if count < len(states_SE) else []
        self._paired += count
        logits_1V = runner.chunk(
            0, following[:count], positions=[count - 1], previous_SE=states_SE[:count]
        )
        logits_V: NDArray[np.float32] = logits_1V[0]
        return logits_V


class Pace:
    """Chooses the draft length that promises most tokens per second.

    Learns from how often guesses were right and how long calls took. Without it, long drafts that
    are mostly wrong slow prose down. The length only changes the time, never the tokens.
    """

    def __init__(self) -> None:
        self._right = FIRST_GUESS
        self._call_s: dict[int, float] = {}
        self._draft_s = 0.0

    def choose(self) -> int:
        """Length of the next draft, at least 1."""
        if 2 not in self._call_s:
            return 1
        return max(SIZES, key=self._rate) - 1

    def learn(self, *, drafted: int, right: int, draft_s: float, size: int, seconds: float) -> None:
        """Record how many of the guesses were right, and the time of the call of `size` tokens."""
        for guess in range(min(right + 1, drafted)):
            self._right += WEIGHT * ((guess < right) - self._right)
        if drafted:
            self._draft_s += WEIGHT * (draft_s / drafted - self._draft_s)
        size += size % 2
        average = self._call_s.setdefault(size, seconds)
        self._call_s[size] = average + WEIGHT * (seconds - average)

    def _rate(self, size: int) -> float:
        """Tokens per second in calls of this size: right guesses and the token after them."""
        tokens = sum(self._right**guess for guess in range(size))
        below = max(measured for measured in self._call_s if measured <= size)
        call_s = self._call_s[below] + SLOPE * (size - below) * self._call_s[2]
        return tokens / (call_s + (size - 1) * self._draft_s)


class Speculation:
    """Advances one sequence by drafts, several tokens per call where they are right.

        prompt, then        a        newest token
        draft                 b c d  guesses
        one call computes   a b c d  and the sampler chooses b c x y
        accepted              b c    x is the newest token now, d is rewound

    Every call has at least two tokens, with or without a draft. So it uses the kernels of a
    prefill, whose rows do not depend on each other, and the sequence is the same whichever guesses
    were right.
    """

    def __init__(self, draft: Draft, sequence: "ActiveSequence", runner: "Runner") -> None:
        self._sequence, self._runner = sequence, runner
        self._new: list[int] = []
        self._count = 0
        request = sequence.request
        self._drafter: Drafter
        with _typed_errors(draft):
            if isinstance(draft, MtpHead):  # it reads vectors of images, too
                self._drafter = draft.begin(request.prompt)
            else:
                self._drafter = _begun(draft, request.tokens)
        self._pace = Pace()

    def observe(self, start: int, states_SE: NDArray[np.float32]) -> None:
        """Pass the states of tokens from `start` on to the drafter, if it reads them."""
        if isinstance(self._drafter, HeadDrafter):
            self._drafter.observe(start, states_SE, self._runner)

    def step(self, row: int, advance: Callable[[NDArray[np.float32]], None]) -> None:
        """Compute the newest token and a draft; append the tokens that turn out right."""
        sequence, runner = self._sequence, self._runner
        begun_at = time.perf_counter()
        if self._count == 0:
            self._new, self._count = [sequence.next_tokens[0]], 1
        with _typed_errors(self._drafter):
            self._drafter.extend(self._new)
        room = min(sequence.request.limit - self._count, runner.wide_tokens) - 1
        draft = list(sequence.forced[: max(room, 0)])
        is_guessed = not draft and room > 0
        if is_guessed:
            draft = self._proposed(min(self._pace.choose(), room))
        drafted_at = time.perf_counter()
        length, tokens = runner.slots.lengths[row], [sequence.next_tokens[0], *draft]
        logits_SV = runner.wide_step(row, tokens)
        computed_at = time.perf_counter()
        self._new = []
        for logits_V, guess in zip(logits_SV, [*draft, None], strict=True):
            advance(logits_V)
            if sequence.finish_reason is not None:
                break
            self._new.append(sequence.next_tokens[0])
            if guess != self._new[-1]:
                break
        right = sum(guess == token for guess, token in zip(draft, self._new, strict=False))
        self._count += len(self._new)
        runner.slots.rewind(length + 1 + right, row=row)
        self.observe(length, runner.hidden_SE[: 1 + right])
        sequence.drafted_tokens += len(draft)
        sequence.accepted_tokens += right
        if is_guessed or not draft:  # forced tokens say nothing about guesses
            self._pace.learn(
                drafted=len(draft),
                right=right,
                draft_s=drafted_at - begun_at,
                size=len(tokens),
                seconds=computed_at - drafted_at,
            )

    def _proposed(self, most: int) -> list[int]:
        """Guesses of the drafter, checked: it may be the caller's own code."""
        what = f"draft: {type(self._drafter).__name__}.propose({most})"
        with _typed_errors(self._drafter):
            guesses = self._drafter.propose(most)
        guesses = checked_ids(guesses, vocab_size=self._runner.logits_BV.shape[1], what=what)
        if len(guesses) > most:
            raise InputError(f"{what}: expected at most {most} token ids, got {len(guesses)}.")
        return guesses


def check_draft(draft: Draft, manifest: Manifest) -> None:
    """Reject a draft that cannot guess for this bundle."""
    if not hasattr(draft, "begin"):
        raise InputError(
            "draft must be PromptLookup(), MtpHead() or DraftModel(model) (got "
            f"{type(draft).__name__})."
        )
    small = draft.model.manifest if isinstance(draft, DraftModel) else None
    states = [*manifest.states, *(() if small is None else small.states)]
    replaced = [state.name for state in states if state.update == "replace"]
    if replaced or manifest.takes_one:
        reason = (
            f"has the recurrent state {replaced[0]!r}" if replaced else "decodes token by token"
        )
        raise InputError(
            f"Drafts need a KV cache that can be rewound, but the model {reason}. "
            "Generate without a draft, or choose another draft model."
        )
    if isinstance(draft, MtpHead) and not manifest.has_head:
        raise InputError(
            "MtpHead() needs a bundle with a head that predicts further tokens; this one has none. "
            "Export the checkpoint with --mtp, or use PromptLookup()."
        )
    if small is not None and (
        _tokenizer_hash(small) != _tokenizer_hash(manifest)
        or small.vocab_size > manifest.vocab_size
    ):
        raise InputError(
            "The draft model has another tokenizer. Use a smaller model of the same family, "
            "or PromptLookup()."
        )


def _begun(draft: Draft, prompt: Sequence[int]) -> Drafter:
    """The drafter of a sequence, from what may be the caller's own code."""
    drafter: Any = draft.begin(prompt)
    if isinstance(drafter, Drafter):
        return drafter
    raise InputError(
        f"draft: {type(draft).__name__}.begin must return an object with the methods `extend` and "
        f"`propose`, got {type(drafter).__name__}."
    )


@contextmanager
def _typed_errors(source: object) -> Iterator[None]:
    """Turn any exception of the caller's own code into an InputError."""
    try:
        yield
    except OrtolanError:
        raise
    except Exception as error:
        raise InputError(
            f"draft: {type(source).__name__} failed with {type(error).__name__}: {error}."
        ) from error


def _tokenizer_hash(manifest: Manifest) -> str | None:
    return next((f.sha256 for f in manifest.files if f.name == manifest.tokenizer), None)
