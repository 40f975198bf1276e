"""Drafts: guesses at the next tokens of a text, which the model checks in one call.

The model computes a few tokens in little more time than one. So a draft is appended as if it were
the text, and of each position the sampler chooses as it would have anyway: as long as it chooses
what the draft says, the next position is already there. A wrong guess costs time and changes
nothing, whether the text is greedy or drawn with a seed (arXiv:2211.17192, section 2; here the
sampler's own draw is the test, so that a seed gives the same text with a draft and without).

Two sources of drafts: `PromptLookup` finds what followed the last tokens when they occurred before
(Saxena 2023, "Prompt Lookup Decoding"), `DraftModel` asks a smaller model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.errors import InputError

__all__ = ["Draft", "DraftModel", "Drafter", "PromptLookup", "check_draft", "checked_drafter"]

NGRAMS = (4, 2, 1)
"""Tokens that have to match, the longest first: a longer match is right more often.

What follows a match of one token is seldom right. It is guessed for a single token, since the
second place of a call is there in any case.
"""


@runtime_checkable
class Drafter(Protocol):
    """Guesses for one text."""

    def extend(self, tokens: Sequence[int], /) -> None:
        """Take tokens that the text has got since the last call."""

    def propose(self, most: int, /) -> list[int]:
        """Guess at most `most` next tokens, ids of the model; none where nothing suggests any."""


class Draft(Protocol):
    """Where guesses come from, for any number of texts."""

    def begin(self, prompt: Sequence[int], /) -> Drafter:
        """Begin to guess for a text that follows this prompt."""


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Drafts from the text itself: what followed the last tokens when they occurred before.

    It costs nothing, and pays where an answer repeats its prompt or itself: edits, extraction,
    structured data.
    """

    def begin(self, prompt: Sequence[int]) -> Drafter:
        """Begin to guess for a text that follows this prompt."""
        return _Lookup(prompt)


class _Lookup:
    """The n-grams of one text, each with where it ended last."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}
        self._found: int | None = None
        self._size = 0
        self.extend(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        known, ends = self._tokens, self._ends
        for token in tokens:
            known.append(token)
            self._found = None
            for size in NGRAMS:
                if len(known) >= size:
                    gram = tuple(known[-size:])
                    if self._found is None:
                        self._found, self._size = ends.get(gram), size
                    ends[gram] = len(known)

    def propose(self, most: int) -> list[int]:
        if self._found is None:
            return []
        known, count = self._tokens, len(self._tokens)
        most = min(most, 1) if self._size == 1 else most
        draft: list[int] = []
        for place in range(self._found, self._found + most):
            # a match that overlaps the end goes on with what it has just guessed: a repetition
            draft.append(known[place] if place < count else draft[place - count])
        return draft


class DraftModel:
    """Drafts from a smaller model with the same tokenizer.

    Args:
        model: a `Decoder`; what it computes belongs to the text that it guesses for.
    """

    def __init__(self, model: Any) -> None:
        if not hasattr(model, "session"):
            raise InputError(
                f"draft: expected a decoder, got {type(model).__name__}. "
                "Load a bundle that continues texts."
            )
        self.model = model

    def begin(self, prompt: Sequence[int]) -> Drafter:
        """Begin to guess for a text that follows this prompt."""
        context_length = self.model.manifest.context_length
        return _Guesses(self.model.session(), prompt, context_length)


def check_draft(draft: Draft, manifest: Manifest) -> None:
    """Refuse a draft that cannot guess for this bundle.

    Raises:
        InputError: it is none, its model has another tokenizer, or the states of one of the two
            cannot take a wrong guess back.
    """
    if not hasattr(draft, "begin"):
        raise InputError(
            f"draft: expected PromptLookup() or DraftModel(model), got {type(draft).__name__}."
        )
    small = draft.model.manifest if isinstance(draft, DraftModel) else None
    states = [*manifest.states, *(() if small is None else small.states)]
    replaced = [state.name for state in states if state.update == "replace"]
    if replaced or manifest.takes_one:
        got = repr(replaced[0]) if replaced else "tokens that are taken one by one"
        raise InputError(
            f"draft: expected states that grow, got {got}, which cannot take a wrong "
            "guess back. Generate without a draft, or choose another model to guess."
        )
    if small is not None and (
        _tokenizer_hash(small) != _tokenizer_hash(manifest)
        or small.vocab_size > manifest.vocab_size
    ):
        raise InputError(
            "draft: expected a model with the same tokenizer, got one with another. "
            "Use the smaller model of the same family, or PromptLookup()."
        )


def checked_drafter(drafter: Any, draft: Draft) -> Drafter:
    """What `begin` of a draft returned, if it is a drafter.

    Raises:
        InputError: it is something else.
    """
    if isinstance(drafter, Drafter):
        return drafter
    raise InputError(
        f"draft: {type(draft).__name__}.begin must return an object with the methods `extend` and "
        f"`propose`, got {type(drafter).__name__}."
    )


def _tokenizer_hash(manifest: Manifest) -> str | None:
    return next((f.sha256 for f in manifest.files if f.name == manifest.tokenizer), None)


class _Guesses:
    """What the smaller model would say, most probable tokens alone."""

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
        # of what it guessed last time, keep what was right; the last token is always computed anew
        same = 0
        for known, token in zip(session.tokens, tokens[:-1], strict=False):
            if known != token:
                break
            same += 1
        session.rewind(same)
        new, draft = tokens[same:], list[int]()
        while len(draft) < most:
            draft.append(int(session.append(new).argmax()))
            new = draft[-1:]
        return draft
