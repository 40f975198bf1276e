"""A model of transformers as a module whose forward takes ids and a `State`."""

import inspect
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from ortolan.export.source.transformers import attention, experts
from ortolan.export.source.transformers.attention import STEP, Step
from ortolan.export.source.transformers.operators import known_operators
from ortolan.export.source.transformers.recurrence import replaced
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.state import State

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

LENGTHS = ("max_position_embeddings", "max_target_positions", "n_positions", "max_seq_len")
"""Keys of a config that say how many positions a model has."""

CACHES = ("past_key_values", "cache_params")
"""What models call their cache."""


class TransformersModule(nn.Module):
    """A causal language model of transformers; its parameters keep their names.

    Args:
        model: with or without weights; it is changed.
        context_length: positions that a token can have.

    Raises:
        ConfigError: the model's attention does not go through transformers' interface.
    """

    def __init__(self, model: "PreTrainedModel", context_length: int) -> None:
        super().__init__()
        attention.register()
        experts.register()
        try:
            model.set_attn_implementation(attention.NAME)
        except ValueError as error:
            raise _unsupported(model.config, f"another ({str(error)[:120]})") from error
        if model._can_set_experts_implementation():
            model.set_experts_implementation(experts.NAME)
            experts.turn(model)
        # As a submodule, its name would come before those of its parameters.
        self.__dict__["_model"] = model
        for name, child in model.named_children():
            self.add_module(name, child)
        self.context_length = context_length
        names = [name for name in CACHES if name in _arguments(model)]
        if not names:
            raise _unsupported(model.config, "none with a cache")
        self._cache_name = names[0]
        head = model.get_output_embeddings()
        if head is None:
            raise _unsupported(model.config, "none whose last product is known")
        head.register_forward_pre_hook(_select_rows)
        for module in model.modules():
            if {"position_ids", "past_key_values_length"} <= _arguments(module):
                module.register_forward_pre_hook(_set_positions, with_kwargs=True)
                module.register_forward_hook(_shape_positions)

    def forward(self, ids: Tensor, state: State) -> Tensor:
        """The logits `(B, S, V)` of ids `(B, S)`, or of the positions that the state asks for.

        Raises:
            ConfigError: something that the model computes is not the state's to compute.
        """
        from ortolan.export.source.transformers.cache import StateCache

        model: PreTrainedModel = self.__dict__["_model"]
        step = Step(state, state.positions(ids), self.context_length)
        token = STEP.set(step)
        try:
            with attention.unpadded(), replaced(model), known_operators():
                output = model(
                    input_ids=ids,
                    position_ids=step.positions,
                    use_cache=True,
                    **{self._cache_name: StateCache(step)},
                )
        finally:
            STEP.reset(token)
        if step.cached > len(step.extended) or not step.keeps:
            raise _unsupported(model.config, "an attention of its own")
        logits: Tensor = output.logits
        return logits


def longest_context(model: "PreTrainedModel") -> int | None:
    """Positions that a token of a model can have; None where nothing says."""
    text = model.config.get_text_config()
    found = (getattr(text, name, None) for name in LENGTHS)
    longest = next((length for length in found if isinstance(length, int) and length > 0), None)
    return None if longest is None else longest - first_position(model)


def first_position(model: nn.Module) -> int:
    """The position of a text's first token, as a model counts."""
    return max(map(_first_position, model.modules()))


def _first_position(module: nn.Module) -> int:
    """The row of an embedding's table that the first token reads.

    Models of RoBERTa's kind count from the row after that of the padding.
    """
    counts = hasattr(module, "create_position_ids_from_input_ids")
    return cast(int, module.padding_idx) + 1 if counts else 0


def _unsupported(config: "PreTrainedConfig", got: str) -> ConfigError:
    return ConfigError(
        f"{config.model_type}: expected a model whose attention goes through transformers' "
        f"AttentionInterface, got {got}."
    )


def _arguments(module: nn.Module) -> set[str]:
    return set(inspect.signature(module.forward).parameters)


def _select_rows(head: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Before the last product: the rows whose logits are asked for."""
    step = STEP.get(None)
    return args if step is None else (step.state.select(args[0]), *args[1:])


def _set_positions(
    module: nn.Module, args: tuple[Any, ...], given: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positions for an embedding that would count them from the length of a cache."""
    step = STEP.get(None)
    if step is None:
        return args, given
    positions = step.positions
    if isinstance(module, nn.Embedding):
        positions = positions.reshape(-1)
    positions = positions + _first_position(module)
    names = list(inspect.signature(module.forward).parameters)
    bound = dict(zip(names, args, strict=False)) | given
    return (), bound | {"position_ids": positions}


def _shape_positions(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
    """What an embedding of flat positions gives, as a row for each token."""
    step = STEP.get(None)
    if step is None or not isinstance(module, nn.Embedding):
        return None
    return output.reshape(*step.positions.shape, -1)
