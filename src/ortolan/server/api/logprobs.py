"""Log-probabilities as chat completions and completions return them."""

import codecs
from collections.abc import Sequence
from typing import Any

import msgspec

from ortolan.runtime import Tokenizer, TokenLogprobs


class TopLogprob(msgspec.Struct, kw_only=True):
    """A token that was possible, with its bytes: a token may end inside a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob, kw_only=True):
    """The token that was chosen, and the most probable ones."""

    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(msgspec.Struct, kw_only=True):
    """Log-probabilities of all tokens of an answer, before sampling options apply."""

    content: list[TokenLogprob]
    refusal: None = None


def logprobs_of(
    logprobs: Sequence[TokenLogprobs] | None, tokenizer: Tokenizer
) -> ChoiceLogprobs | None:
    """Return the log-probabilities of a completion; `None` if they were not requested."""
    if logprobs is None:
        return None

    def fields(token: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(token)
        return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}

    content = [
        TokenLogprob(
            **fields(entry.token, entry.logprob),
            top_logprobs=[TopLogprob(**fields(*pair)) for pair in entry.top],
        )
        for entry in logprobs
    ]
    return ChoiceLogprobs(content=content)


class TextLogprobs(msgspec.Struct, kw_only=True):
    """Log-probabilities, a list per kind. The first token of an echoed prompt has none.

    Attributes:
        text_offset: character in the text of the choice at which each token begins.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextLogprobsWriter:
    """Writes the log-probabilities of one choice, part by part."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._hidden = frozenset(tokenizer.special_ids())
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def write(self, entries: Sequence[TokenLogprobs], *, first: int | None = None) -> TextLogprobs:
        """Write the next tokens, after the first token of a prompt, if any."""
        unscored = [] if first is None else [first]
        tokens = [*unscored, *(entry.token for entry in entries)]
        return TextLogprobs(
            tokens=[self._text(token) for token in tokens],
            token_logprobs=[None for _ in unscored] + [entry.logprob for entry in entries],
            top_logprobs=[None for _ in unscored] + [self._top(entry) for entry in entries],
            text_offset=[self._next_offset(token) for token in tokens],
        )

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        """The chosen token, and the most probable ones."""
        pairs = [(entry.token, entry.logprob), *entry.top]
        return {self._text(token): logprob for token, logprob in pairs}

    def _next_offset(self, token: int) -> int:
        """Where a token begins. A character belongs to the token that completes it."""
        start = self._offset
        if token not in self._hidden:
            self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token)))
        return start

    def _text(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode(errors="replace")
