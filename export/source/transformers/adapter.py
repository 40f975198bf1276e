"""Wraps a model of transformers as a module with `forward(ids, state)`."""

import inspect
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from ortolan.export.source.transformers import attention, experts
from ortolan.export.source.transformers.attention import STEP, Step
from ortolan.export.source.transformers.operators import known_operators
from ortolan.export.source.transformers.private import (
    CACHED_TOKENS,
    CACHES,
    COUNTS_AFTER_PADDING,
    set_experts,
    unpadded,
)
from ortolan.export.source.transformers.recurrence import replaced
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.state import State

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

LENGTHS = ("max_position_embeddings", "max_target_positions", "n_positions", "max_seq_len")
"""Config keys for the number of positions."""


class TransformersModule(nn.Module):
    """A causal language model of transformers; its parameters keep their names."""

    def __init__(self, model: "PreTrainedModel", context_length: int) -> None:
        super().__init__()
        attention.register()
        experts.register()
        try:
            model.set_attn_implementation(attention.NAME)
        except ValueError as error:
            raise _unsupported(model.config, f"it does not ({str(error)[:120]})") from error
        if set_experts(model, experts.NAME):
            experts.interleave(model)
        # Not a submodule: its name would become part of the names of the parameters.
        self.__dict__["_model"] = model
        for name, child in model.named_children():
            self.add_module(name, child)
        self.context_length = context_length
        names = [name for name in CACHES if name in _arguments(model)]
        if not names:
            raise _unsupported(model.config, "it has no cache")
        self._cache_name = names[0]
        head = model.get_output_embeddings()
        if head is None:
            raise _unsupported(model.config, "it has no output embeddings")
        head.register_forward_pre_hook(_select_rows)
        for module in model.modules():
            arguments = _arguments(module)
            if "position_ids" in arguments and arguments & CACHED_TOKENS:
                module.register_forward_pre_hook(_set_positions, with_kwargs=True)
                module.register_forward_hook(_shape_positions)

    def forward(self, ids: Tensor, state: State) -> Tensor:
        """Logits `(B, S, V)` of ids `(B, S)`, or only of the positions that the state selects."""
        from ortolan.export.source.transformers.cache import StateCache

        model: PreTrainedModel = self.__dict__["_model"]
        step = Step(state, state.positions(ids), self.context_length)
        token = STEP.set(step)
        try:
            with unpadded(), replaced(model), known_operators():
                output = model(
                    input_ids=ids,
                    position_ids=step.positions,
                    use_cache=True,
                    **{self._cache_name: StateCache(step)},
                )
        finally:
            STEP.reset(token)
        if step.cached > len(step.extended) or not step.keeps:
            raise _unsupported(model.config, "it also attends on its own")
        logits: Tensor = output.logits
        return logits


def longest_context(model: "PreTrainedModel") -> int | None:
    """Number of positions for tokens; None if the config does not say."""
    text = model.config.get_text_config()
    lengths = (getattr(text, name, None) for name in LENGTHS)
    longest = next((length for length in lengths if isinstance(length, int) and length > 0), None)
    return None if longest is None else longest - first_position(model)


def first_position(model: nn.Module) -> int:
    """The position of the first token of a sequence."""
    return max(map(_first_position, model.modules()))


def _first_position(module: nn.Module) -> int:
    """The first row of an embedding of positions; RoBERTa's comes after that of the padding."""
    counts = hasattr(module, COUNTS_AFTER_PADDING)
    return cast(int, module.padding_idx) + 1 if counts else 0


def _unsupported(config: "PreTrainedConfig", problem: str) -> ConfigError:
    return ConfigError(
        f"{config.model_type}: attention has to go through transformers' AttentionInterface, but "
        f"{problem}."
    )


def _arguments(module: nn.Module) -> set[str]:
    return set(inspect.signature(module.forward).parameters)


def _select_rows(head: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Select the positions whose logits are wanted before the head."""
    step = STEP.get(None)
    return args if step is None else (step.state.select(args[0]), *args[1:])


def _set_positions(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Pass positions to an embedding that would count them from the length of the cache."""
    step = STEP.get(None)
    if step is None:
        return args, kwargs
    positions = step.positions
    if isinstance(module, nn.Embedding):
        positions = positions.reshape(-1)
    positions = positions + _first_position(module)
    names = list(inspect.signature(module.forward).parameters)
    bound = dict(zip(names, args, strict=False)) | kwargs
    return (), bound | {"position_ids": positions}


def _shape_positions(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
    """Undo the flattening of positions for an embedding."""
    step = STEP.get(None)
    if step is None or not isinstance(module, nn.Embedding):
        return None
    return output.reshape(*step.positions.shape, -1)
