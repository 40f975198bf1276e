"""Log-probabilities as chat completions return them."""

from collections.abc import Sequence

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

    def top(token: int, logprob: float) -> TopLogprob:
        data = tokenizer.token_bytes(token)
        return TopLogprob(token=data.decode(errors="replace"), logprob=logprob, bytes=list(data))

    content = []
    for entry in logprobs:
        chosen = top(entry.token, entry.logprob)
        content.append(
            TokenLogprob(
                token=chosen.token,
                logprob=chosen.logprob,
                bytes=chosen.bytes,
                top_logprobs=[top(*pair) for pair in entry.top],
            )
        )
    return ChoiceLogprobs(content=content)
