"""What all configs share: bounds of their values, and the fields of every model."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, get_args, get_type_hints

from ortolan.modeling.errors import ConfigError

FeatureAttention = Literal["causal", "both_ways"]
"""Which vectors of an image a vector attends to: those before it, or all of them."""


T = TypeVar("T")


class Bound(NamedTuple):
    """Condition on a value, and its wording after "must"."""

    text: str
    holds: Callable[[Any], bool]


Size = Annotated[int, Bound("be at least 1", lambda value: value >= 1)]

Count = Annotated[int, Bound("be at least 0", lambda value: value >= 0)]

Positive = Annotated[float, Bound("be positive", lambda value: 0 < value < math.inf)]

Some = Annotated[tuple[T, ...], Bound("not be empty", bool)]


class Config:
    """Base of dataclasses whose fields may be annotated with a `Bound`.

    Attributes:
        ADVICE: what to do about a value outside of its bound.
    """

    __slots__ = ()

    ADVICE: ClassVar[str] = "Correct it, or the key of config.json that it comes from."

    def __post_init__(self) -> None:
        """Raise ConfigError for a value outside of its bound, or for a contradiction."""
        kind: Any = type(self)
        for name, bound in _bounds(kind):
            value = getattr(self, name)
            if value is not None and not bound.holds(value):
                raise ConfigError(
                    f"{kind.__name__}: {name} must {bound.text} (got {value!s:.80}). {kind.ADVICE}"
                )
        self._check()

    def _check(self) -> None:
        """Raise ConfigError if the fields contradict each other."""


@cache
def _bounds(kind: type[Config]) -> tuple[tuple[str, Bound], ...]:
    """Fields with a bound; that of an optional field is within a union."""
    return tuple(
        (name, note)
        for name, hint in get_type_hints(kind, include_extras=True).items()
        for part in (hint, *get_args(hint))
        for note in getattr(part, "__metadata__", ())
        if isinstance(note, Bound)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(Config):
    """The fields of every model.

    Attributes:
        model_type: the family whose checkpoint format the model is saved in. It names a format and
            never changes the computation.
        bos_token_id: the token that starts a sequence, if there is one.
        eos_token_ids: the tokens that end a sequence.
        pad_token_id: the token that pads batches; never changes the computation.
        feature_token_id: the token whose embedding is replaced by a vector that an encoder of
            images computed; None for a language model of text alone.
        feature_attention: whether adjacent vectors attend to each other in both directions.
    """

    model_type: str
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    feature_token_id: int | None = None
    feature_attention: FeatureAttention = "causal"
