"""Benchmark cases: prompts (pp) and generation (tg) of given lengths at given depths.

Names and meanings are those of llama-bench, so figures can be compared.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ortolan.runtime.errors import ContextLengthError, InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A benchmark case.

    Attributes:
        kind: `pp` appends tokens at once, `tg` one after another.
        tokens: number of tokens.
        depth: tokens already in the cache.
    """

    kind: Literal["pp", "tg"]
    tokens: int
    depth: int = 0

    @property
    def name(self) -> str:
        """Name as in llama-bench: `tg128 @ d512`."""
        return f"{self.kind}{self.tokens}" + (f" @ d{self.depth}" if self.depth else "")

    @property
    def end(self) -> int:
        """Tokens in the cache afterwards."""
        return self.depth + self.tokens


def cases(
    prompts: Iterable[int], news: Iterable[int], depths: Iterable[int] = (0,)
) -> tuple[Case, ...]:
    """Combine every prompt length and number of new tokens with every depth; 0 means none."""
    kinds: tuple[tuple[Literal["pp", "tg"], tuple[int, ...]], ...]
    kinds = (("pp", tuple(prompts)), ("tg", tuple(news)))
    combined = (
        Case(kind=kind, tokens=count, depth=depth)
        for depth in depths
        for kind, counts in kinds
        for count in counts
        if count != 0
    )
    return tuple(dict.fromkeys(combined))


def check_context(chosen: Iterable[Case], context: int) -> None:
    """Check that the cases fit into the context of a model."""
    flags: dict[str, str] = {}
    longest: Case | None = None
    for case in chosen:
        if case.tokens < 1 or case.depth < 0:
            raise InputError(
                f"{case.kind} needs at least 1 token, at a depth of at least 0 (got {case.tokens} "
                f"at {case.depth})."
            )
        if case.end > context:
            flags[case.kind] = {"pp": "-p", "tg": "-n"}[case.kind]
            longest = case if longest is None or case.end > longest.end else longest
    if longest is None:
        return
    room = context - max(longest.depth, 0)
    options = " ".join(f"{flag} {room}" for flag in flags.values())
    raise ContextLengthError(
        f"{longest.name} exceeds the context of {context} tokens, got {longest.end}. "
        + (f"Choose at most {options}." if room > 0 else f"Choose a depth below {context}.")
    )
