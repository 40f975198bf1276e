"""Every name of transformers that is not public, and may change between its versions.

`test_private.py` checks them in the oldest and the newest version that is supported.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CACHES = ("cache", "past_key_values", "cache_params")
"""Names of the argument for a cache, newest first."""

EXPERTS = (
    *("act_fn", "config", "down_proj", "has_bias", "has_gate", "has_post_expert_norm"),
    *("is_concatenated", "is_transposed", "_apply_gate"),
)
"""Attributes of a module of experts, which say what others it has: `gate_up_proj` or `up_proj`."""

DELTA_RULES = ("chunk_kimi_delta_attention", "torch_chunk_gated_delta_rule")
STATE_SPACE_OF_HEADS = "mamba2_chunk_scan"
STATE_SPACE_OF_CHANNELS = "mamba_selective_scan"
"""Functions of recurrences in the files of models."""

COUNTS_AFTER_PADDING = "create_position_ids_from_input_ids"
"""Method of RoBERTa's embeddings, whose first position is that after the padding's."""

CACHED_TOKENS = frozenset({"cache_length", "past_key_values_length"})
"""Names of an embedding's argument for the number of tokens before, from which it counts on."""

_INITIALIZED = "_is_hf_initialized"


def causal_classes(model_type: str) -> tuple[str, ...]:
    """Names of the classes of causal language models of a type."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type, ())
    return (names,) if isinstance(names, str) else tuple(names)


def build_as(kind: Any, config: Any) -> nn.Module:
    """Build a model of a class from its config."""
    model: nn.Module = kind._from_config(config, dtype=torch.float32)
    return model


def compute_buffers(model: "PreTrainedModel") -> None:
    """Compute the buffers that no checkpoint holds, as loading a checkpoint does."""
    computed = dict(model.named_non_persistent_buffers())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name not in computed:
            setattr(tensor, _INITIALIZED, True)
    for name, buffer in computed.items():
        path, _, own = name.rpartition(".")
        empty = torch.empty_like(buffer, device="cpu")
        model.get_submodule(path).register_buffer(own, empty, persistent=False)
    model.initialize_weights()


def has_adapters(model: nn.Module) -> bool:
    """Whether adapters of PEFT were loaded into a model."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


class Conversions:
    """How transformers turns published tensors into the weights of a model."""

    def __init__(self, model: "PreTrainedModel", expected: Iterable[str]) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming

        mapping = get_model_conversion_mapping(model)
        self._model = model
        self._names = dict.fromkeys(expected, True)
        self._renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
        self._converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]

    def renamed(self, published: str) -> tuple[str, str | None]:
        """The model's name for a tensor, and the pattern of its converter; None without one."""
        from transformers.core_model_loading import rename_source_key

        prefix, names = self._model.base_model_prefix, self._names
        name, pattern = rename_source_key(
            published, self._renamings, self._converters, prefix, names
        )
        if name not in names and published in names:
            name, pattern = rename_source_key(published, [], [], prefix, names)
        return name, pattern

    def converter(self, pattern: str) -> Any:
        """A new converter, which collects tensors with `add_tensor`."""
        found = [one for one in self._converters if pattern in one.source_patterns]
        return deepcopy(found[-1])

    def converted(self, name: str, converter: Any) -> dict[str, Tensor]:
        """The weights that a converter makes of the tensors that it collected."""
        with torch.no_grad():
            outputs = converter.convert(name, model=self._model, config=self._model.config)
        return {
            full: output[0] if isinstance(output, list) else output
            for full, output in outputs.items()
        }


def in_natural_order(names: Iterable[str]) -> list[str]:
    """Sort names of tensors with their numbers as numbers, as transformers loads them."""
    from transformers.core_model_loading import dot_natural_key

    return sorted(names, key=dot_natural_key)


def absent_patterns(model: "PreTrainedModel") -> tuple[str, ...]:
    """Patterns of weights that a checkpoint may lack."""
    return tuple(model._keys_to_ignore_on_load_missing or ())


def unread_patterns(model: "PreTrainedModel") -> tuple[str, ...]:
    """Patterns of tensors in checkpoints that the model does not read."""
    return tuple(model._keys_to_ignore_on_load_unexpected or ())


def tied_weights(model: "PreTrainedModel") -> Mapping[str, str]:
    """Weights that share their values with another, and that one."""
    tied: Mapping[str, str] = model.all_tied_weights_keys
    return tied


def transposed_weights(model: nn.Module) -> Iterator[str]:
    """Names of the weights of products that GPT-2 stores with their inputs first."""
    from transformers.pytorch_utils import Conv1D

    for name, module in model.named_modules():
        if isinstance(module, Conv1D):
            yield f"{name}.weight"


def set_experts(model: "PreTrainedModel", name: str) -> bool:
    """Choose how experts are computed; whether the model has any."""
    if not model._can_set_experts_implementation():
        return False
    model.set_experts_implementation(name)
    return True


def register_experts(name: str, mix: Callable[..., Tensor]) -> None:
    """Register a way to compute experts, once or again."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(name, mix)


def has_usual_gate(experts: Any) -> bool:
    """Whether a module of experts multiplies its activation by the second half."""
    file: str = type(experts)._apply_gate.__module__
    return file == "transformers.integrations.moe"


@contextmanager
def unpadded() -> Iterator[None]:
    """Compute the masks of chunked attention without left padding: there is none."""
    from transformers import masking_utils

    own = masking_utils.chunked_overlay

    def overlay(chunk_size: int, left_padding: Tensor) -> Callable[..., Tensor]:
        return lambda batch, head, query, key: key // chunk_size == query // chunk_size

    masking_utils.chunked_overlay = overlay
    try:
        yield
    finally:
        masking_utils.chunked_overlay = own


def rotary_frequencies(config: Any, kind: str, *, layers: str | None, length: int) -> Tensor:
    """The rotary frequencies of a kind for sequences of a length; of layers of one type or all."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    layer_type = {} if layers is None else {"layer_type": layers}
    frequencies: Tensor
    frequencies, _ = ROPE_INIT_FUNCTIONS[kind](
        config, torch.device("cpu"), seq_len=length, **layer_type
    )
    return frequencies
