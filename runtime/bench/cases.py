"""What a benchmark measures: prompts (pp) and generation (tg), of given lengths, at given depths.

Names and meaning are llama.cpp's, so that figures can be compared. Measures nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ortolan.runtime.errors import ContextLengthError, InputError

__all__ = ["Case", "cases", "check_context"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing to measure.

    Attributes:
        kind: `pp` appends its tokens at once, `tg` one after another.
        depth: tokens that stand in the cache before.
    """

    kind: Literal["pp", "tg"]
    tokens: int
    depth: int = 0

    @property
    def name(self) -> str:
        """As llama-bench writes it: `tg128 @ d512`."""
        return f"{self.kind}{self.tokens}" + (f" @ d{self.depth}" if self.depth else "")

    @property
    def end(self) -> int:
        """Tokens in the cache afterwards."""
        return self.depth + self.tokens

    @property
    def mean_length(self) -> float:
        """Tokens in the cache after a step, over the steps of `tg`."""
        return self.depth + (self.tokens + 1) / 2


def cases(
    prompts: Iterable[int], news: Iterable[int], depths: Iterable[int] = (0,)
) -> tuple[Case, ...]:
    """Every prompt length and every number of new tokens at every depth; 0 stands for none."""
    found: list[Case] = []
    prompts, news = tuple(prompts), tuple(news)
    for depth in depths:
        found += [Case(kind="pp", tokens=count, depth=depth) for count in prompts if count != 0]
        found += [Case(kind="tg", tokens=count, depth=depth) for count in news if count != 0]
    return tuple(dict.fromkeys(found))


def check_context(chosen: Iterable[Case], context: int) -> None:
    """Refuse cases that a model has no room for.

    Raises:
        ContextLengthError: names the longest, and the lengths that fit.
        InputError: a case without tokens, or at a negative depth.
    """
    flags: dict[str, str] = {}
    longest: Case | None = None
    for case in chosen:
        if case.tokens < 1 or case.depth < 0:
            raise InputError(
                f"{case.kind}: expected at least 1 token at a depth of at least 0, got "
                f"{case.tokens} at {case.depth}."
            )
        if case.end > context:
            flags[case.kind] = {"pp": "-p", "tg": "-n"}[case.kind]
            longest = case if longest is None or case.end > longest.end else longest
    if longest is None:
        return
    room = context - max(longest.depth, 0)
    options = " ".join(f"{flag} {room}" for flag in flags.values())
    raise ContextLengthError(
        f"{longest.name}: expected at most the context of {context} tokens, got {longest.end}. "
        + (f"Choose at most {options}." if room > 0 else f"Choose a depth below {context}.")
    )
