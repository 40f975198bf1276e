"""Ortolan's attention for transformers: a function that attends, and one that makes its mask.

The first hands queries, keys and values to the state of the step. The mask only describes what a
token sees: the state knows the length of each row.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from ortolan.modeling.errors import ConfigError
from ortolan.modeling.state import State

NAME = "ortolan"
"""Name of this attention in transformers."""

LAYERS = 1 << 16
"""More than any model has: where the second attention of a layer gets its number."""

INERT = frozenset(
    {
        *("cache", "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "cumulative_seqlens_k"),
        *("cumulative_seqlens_q", "dropout", "is_causal", "labels", "logits_to_keep"),
        *("max_length_k", "max_length_q", "max_seqlen_k", "max_seqlen_q", "output_attentions"),
        *("output_hidden_states", "output_router_logits", "past_key_values", "position_ids"),
        *("return_dict", "token_type_ids", "use_cache"),
    }
)
"""Arguments that change no score."""


@dataclass(frozen=True, slots=True)
class Mask:
    """Which tokens a token may attend to: itself and earlier ones.

    Attributes:
        window: number of tokens, itself included; None for all.
        problem: why the mask cannot be described; raised only if it is used.
    """

    window: int | None = None
    problem: str | None = None

    def __getitem__(self, place: object) -> object:
        """Refuse to give values."""
        raise ConfigError("the model computes with the values of its attention mask")

    def __getattr__(self, name: str) -> object:
        """Refuse to give a shape or dtype, as `__getitem__`."""
        return self[name]


@dataclass(slots=True)
class Step:
    """One call of a model.

    Attributes:
        state: the state of the step.
        positions: of the new tokens, int64 `(B, S)` or `(1, S)`.
        context_length: number of positions.
        extended: keys and values of each attention so far, by its number in the state.
        cached: number of times that the cache got keys and values.
        keeps: whether the state keeps anything for the next step.
        recurrence: name of the state of the next recurrence.
        recurrences: number of recurrences with that name so far.
    """

    state: State
    positions: Tensor
    context_length: int
    extended: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    cached: int = 0
    keeps: bool = False
    recurrence: str = ""
    recurrences: int = 0


STEP: ContextVar[Step] = ContextVar("step")


def register() -> None:
    """Register this attention with transformers, once or again."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, make_mask)


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
    """Attend with queries `(B, H, S, D)`, and return `(B, S, H, U)`; called in every layer.

    A layer that passes the keys and values of an earlier one shares its cache.
    """
    step = STEP.get()
    mask = _checked(module, attention_mask, others)
    shared = (
        place for place, (keys, values) in step.extended.items() if keys is key and values is value
    )
    place = next(shared, None)
    new: tuple[Tensor, ...] = ()
    if place is None:
        place, new = _free_place(module, step), (key, value)
        step.extended[place] = new
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


def _free_place(module: nn.Module, step: Step) -> int:
    """A number for an attention; it depends only on its layer, so that others can be left out."""
    place = getattr(module, "layer_idx", None)
    place = place if isinstance(place, int) else len(step.extended)
    return next(free for free in count(place, LAYERS) if free not in step.extended)


def _checked(module: nn.Module, mask: Mask | Tensor | None, others: dict[str, Any]) -> Mask:
    """The mask of a call, once nothing else is asked for."""
    is_causal = others.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    unknown = sorted({name for name, value in others.items() if value is not None} - INERT)
    match mask:
        case None:
            mask = Mask(problem=None if is_causal else "it is bidirectional")
        case Tensor():
            mask = Mask(problem="a tensor is added to the scores")
    problem = f"it takes {', '.join(unknown)}" if unknown else mask.problem
    if problem is not None:
        raise ConfigError(
            f"{type(module).__name__}: attention has to be causal, in a window or over all tokens, "
            f"but {problem}."
        )
    return mask


def make_mask(*, mask_function: Callable[..., Tensor], **_: Any) -> Mask:
    """Describe a mask, by asking what some tokens see; called for every mask."""
    last = STEP.get().context_length - 1
    # Real tensors, even while a trace uses fake ones.
    with _disable_current_modes(), torch.device("cpu"):
        zero, keys = torch.zeros((), dtype=torch.int64), torch.arange(last + 2)

        def seen(position: int) -> Tensor:
            return mask_function(zero, zero, torch.tensor(position), keys).expand(len(keys))

        try:
            window = int(seen(last).sum())
            for position in {0, last // 3, last // 2, last - 1, last} & set(range(last + 1)):
                expected = (keys > position - window) & (keys <= position)
                if not torch.equal(seen(position), expected):
                    return Mask(problem=_problem(seen, last))
        except (IndexError, RuntimeError):  # the mask reads tensors of this step
            return Mask(problem="its mask depends on the tokens")
    return Mask(window=None if window > last else window)


def _problem(seen: Callable[[int], Tensor], last: int) -> str:
    """Why a mask is none that a state knows: chunks, if the first ones have one length."""
    first, beyond = 0, last
    while beyond - first > 1:  # the first position that does not see all before it
        middle = (first + beyond) // 2
        if int(seen(middle).sum()) == middle + 1:
            first = middle
        else:
            beyond = middle
    if int(seen(beyond).sum()) != 1:
        return "its mask is another one"
    return (
        f"it is in chunks of {beyond} tokens. Within one it can be exported: pass --max-context "
        f"{beyond}, or less"
    )
