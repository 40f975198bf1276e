"""A model of transformers as a module whose forward takes ids and a `State`.

transformers asks three things of an attention: a function that attends, one that makes the mask,
and a cache. Here the state attends, the mask is a description of what a token may see, and the
cache gives back what it is given: the state holds keys, values and everything else.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from ortolan.modeling.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "ortolan"
"""What transformers knows this attention by."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a token may attend to: itself and what comes before it.

    Attributes:
        window: how many tokens in all; None for every one.
    """

    window: int | None


@dataclass(slots=True)
class _Step:
    """One call of the model.

    Attributes:
        state: the caller's.
        keys: of each layer that attended, by layer.
        context_length: positions that a token can have.
    """

    state: Any
    context_length: int
    keys: dict[int, Tensor] = field(default_factory=dict)


_STEP: ContextVar[_Step] = ContextVar("step")


class TransformersModule(nn.Module):
    """A causal language model of transformers; its parameters keep their names.

    Args:
        model: as `skeleton.build_skeleton` gives it, or with weights.

    Raises:
        ConfigError: the model's attention does not go through transformers' interface.
    """

    def __init__(self, model: "PreTrainedModel") -> None:
        super().__init__()
        _register()
        try:
            model.set_attn_implementation(NAME)
        except ValueError as error:
            raise _unsupported(model, f"an attention of its own ({str(error)[:120]})") from error
        # Kept out of the modules: the names of its parameters would begin with its own.
        self.__dict__["_model"] = model
        for name, child in model.named_children():
            self.add_module(name, child)
        self.context_length = int(model.config.get_text_config().max_position_embeddings)
        head = model.get_output_embeddings()
        if head is None:
            raise _unsupported(model, "no output embeddings")
        head.register_forward_pre_hook(_select)

    def forward(self, ids: Tensor, state: Any) -> Tensor:
        """The logits `(B, S, V)` of ids `(B, S)`, or of the positions that the state asks for."""
        model = self.__dict__["_model"]
        step = _Step(state, self.context_length)
        token = _STEP.set(step)
        try:
            output = model(
                input_ids=ids,
                position_ids=state.positions(ids.shape[1]),
                past_key_values=_cache(),
                use_cache=True,
            )
        finally:
            _STEP.reset(token)
        logits: Tensor = output.logits
        return logits


def _unsupported(model: "PreTrainedModel", got: str) -> ConfigError:
    return ConfigError(
        f"{model.config.model_type}: expected a model whose attention goes through transformers' "
        f"AttentionInterface, got {got}. It needs a family of its own."
    )


def _register() -> None:
    """Make transformers know this attention; again does no harm."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, _seen)


def _select(head: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Before the head: the rows whose logits are asked for."""
    step = _STEP.get(None)
    return args if step is None else (step.state.select(args[0]), *args[1:])


# what models pass along that says nothing of the scores
_INERT = frozenset(
    "cache_position cu_seq_lens_k cu_seq_lens_q cumulative_seqlens_k cumulative_seqlens_q "
    "max_length_k max_length_q max_seqlen_k max_seqlen_q output_attentions "
    "output_hidden_states output_router_logits position_ids use_cache is_causal dropout "
    "logits_to_keep return_dict labels past_key_values".split()
)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Seen | Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer: `(B, H, S, D)` queries to `(B, S, H, U)`."""
    step = _STEP.get()
    if isinstance(attention_mask, Tensor):
        raise ConfigError("attention: expected a mask that is a window, got values of its own.")
    if others.get("is_causal", getattr(module, "is_causal", True)) is False:
        raise ConfigError("attention: expected a causal one, got one of both directions.")
    unknown = {name for name, value in others.items() if value is not None} - _INERT
    if unknown:
        raise ConfigError(f"attention: expected nothing else that changes it, got {sorted(unknown)}.")
    layer = module.layer_idx
    source = next((i for i, keys in step.keys.items() if keys is key), None)
    step.keys[layer] = key
    out: Tensor = step.state.attend(
        layer if source is None else source,
        query,
        *((key, value) if source is None else ()),
        scale=scaling,
        window=attention_mask.window if isinstance(attention_mask, Seen) else None,
        softcap=softcap,
        sinks=s_aux,
    )
    return out.transpose(1, 2), None


def _seen(*, mask_function: Callable[..., Tensor], **_: Any) -> Seen:
    """What transformers calls for a mask: told by asking about tokens."""
    last = _STEP.get().context_length - 1
    with _disable_current_modes(), torch.device("cpu"):
        zero = torch.zeros((), dtype=torch.int64)
        keys = torch.arange(last + 2)

        def seen(position: int) -> list[bool]:
            """Whether a token sees each other."""
            place = torch.tensor(position)
            visible = mask_function(zero, zero, place, keys) & (keys >= 0)
            return visible.tolist()  # type: ignore[no-any-return]

        window = sum(seen(last))
        for position in {0, 1, last // 2, last - 1, last} & set(range(last + 1)):
            expected = [position - window < key <= position for key in keys.tolist()]
            if seen(position) != expected:
                raise ConfigError("attention: expected one that sees the last tokens, got another.")
    return Seen(None if window > last else window)


def _cache() -> Any:
    """A cache that gives back what it is given; the state holds it."""
    from transformers.cache_utils import Cache

    class Slots(Cache):
        def __init__(self) -> None:
            super().__init__(layers=[])

        def update(self, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            return key, value

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return 0

        def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
            return query_length, 0

        def is_recording_past(self, layer_idx: int) -> bool:
            return True

        def has_previous_state(self, *_: Any, **__: Any) -> bool:
            return True

        def update_conv_state(self, x: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int | None = None, **_: Any) -> Tensor:
            raise ConfigError("a convolution")

    return Slots()
