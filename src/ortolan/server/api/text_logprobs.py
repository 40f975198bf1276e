"""Log-probabilities as completions return them, with the place of each token in the text."""

import codecs
from collections.abc import Sequence

import msgspec

from ortolan.runtime import Tokenizer, TokenLogprobs


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


def joined(parts: Sequence[TextLogprobs]) -> TextLogprobs | None:
    """Join consecutive parts; `None` if there are none."""
    if not parts:
        return None
    return TextLogprobs(
        tokens=[token for part in parts for token in part.tokens],
        token_logprobs=[value for part in parts for value in part.token_logprobs],
        top_logprobs=[top for part in parts for top in part.top_logprobs],
        text_offset=[offset for part in parts for offset in part.text_offset],
    )
