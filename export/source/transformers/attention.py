"""What transformers asks of an attention: a function that attends, and one that makes its mask.

The function hands queries, keys and values to the state of the step. The mask is a description of
what a token sees; the state, which knows how long each text is, needs no other.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from ortolan.modeling.errors import ConfigError
from ortolan.modeling.state import State

NAME = "ortolan"
"""What transformers knows this attention by."""

INERT = frozenset(
    (
        "cache_position",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "cumulative_seqlens_k",
        "cumulative_seqlens_q",
        "dropout",
        "is_causal",
        "labels",
        "logits_to_keep",
        "max_length_k",
        "max_length_q",
        "max_seqlen_k",
        "max_seqlen_q",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "past_key_values",
        "position_ids",
        "return_dict",
        "token_type_ids",
        "use_cache",
    )
)
"""What models pass along that changes no score."""


@dataclass(frozen=True, slots=True)
class Mask:
    """What a token may attend to: itself and tokens before it.

    Attributes:
        window: how many tokens in all; None for every one.
        problem: why it cannot be said like this; what is not used may have one.
    """

    window: int | None = None
    problem: str | None = None

    def __getitem__(self, place: object) -> object:
        """No values.

        Raises:
            ConfigError: a model computes with its mask.
        """
        raise ConfigError("expected an attention that its mask describes, got scores of its own")

    def __getattr__(self, name: str) -> object:
        """No shape and no dtype; see `__getitem__`."""
        return self[name]


@dataclass(slots=True)
class Step:
    """One call of a model.

    Attributes:
        state: the caller's.
        positions: of the new tokens, int64 `(B, S)` or `(1, S)`.
        context_length: positions that a token can have.
        extended: keys and values of each attention so far, in order.
        cached: how often keys and values were given to the cache.
        keeps: something is remembered for the next step.
        recurrence: the name of the state of the recurrences that are computed next.
        recurrences: how many of that name there were.
    """

    state: State
    positions: Tensor
    context_length: int
    extended: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    cached: int = 0
    keeps: bool = False
    recurrence: str = ""
    recurrences: int = 0


STEP: ContextVar[Step] = ContextVar("step")


def register() -> None:
    """Make transformers know this attention; again does no harm."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, make_mask)


@contextmanager
def unpadded() -> Iterator[None]:
    """Let masks of chunks not look for tokens on the left that are padding: there are none."""
    from transformers import masking_utils

    own = masking_utils.chunked_overlay

    def overlay(chunk_size: int, left_padding: Tensor) -> Callable[..., Tensor]:
        return lambda batch, head, query, key: key // chunk_size == query // chunk_size

    masking_utils.chunked_overlay = overlay
    try:
        yield
    finally:
        masking_utils.chunked_overlay = own


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Mask | Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer: from queries `(B, H, S, D)` to `(B, S, H, U)`.

    Keys and values that another layer made in this step are those of that layer.

    Raises:
        ConfigError: it asks for something that a state does not do.
    """
    step = STEP.get()
    mask = _checked(module, attention_mask, others)
    found = (
        place
        for place, (keys, values) in enumerate(step.extended)
        if keys is key and values is value
    )
    place = next(found, None)
    new: tuple[Tensor, ...] = ()
    if place is None:
        place, new = len(step.extended), (key, value)
        step.extended.append((key, value))
        step.keeps = True
    out: Tensor = step.state.attend(
        place,
        query,
        *new,
        scale=scaling,
        window=mask.window,
        softcap=softcap,
        sinks=s_aux,
    )
    return out.transpose(1, 2).contiguous(), None


def _checked(module: nn.Module, mask: Mask | Tensor | None, others: dict[str, Any]) -> Mask:
    """The mask of a call, which asks for nothing else."""
    is_causal = others.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    unknown = sorted({name for name, value in others.items() if value is not None} - INERT)
    match mask:
        case None:
            mask = Mask(problem=None if is_causal else "one of both directions")
        case Tensor():
            mask = Mask(problem="scores that a tensor is added to")
    problem = f"one that takes {', '.join(unknown)}" if unknown else mask.problem
    if problem is not None:
        raise ConfigError(
            f"{type(module).__name__}: expected causal attention, of a window or of all tokens, "
            f"got {problem}."
        )
    return mask


def make_mask(*, mask_function: Callable[..., Tensor], **_: Any) -> Mask:
    """What transformers calls for a mask: what a token sees, found by asking about some."""
    last = STEP.get().context_length - 1
    # Real numbers, whatever tensors the caller is tracing with.
    with _disable_current_modes(), torch.device("cpu"):
        zero, keys = torch.zeros((), dtype=torch.int64), torch.arange(last + 2)

        def seen(position: int) -> Tensor:
            return mask_function(zero, zero, torch.tensor(position), keys).expand(len(keys))

        try:
            window = int(seen(last).sum())
            for position in {0, last // 3, last // 2, last - 1, last} & set(range(last + 1)):
                expected = (keys > position - window) & (keys <= position)
                if not torch.equal(seen(position), expected):
                    return Mask(problem="another mask")
        except (IndexError, RuntimeError):  # it reads tensors of this step
            return Mask(problem="a mask that depends on the tokens")
    return Mask(window=None if window > last else window)
