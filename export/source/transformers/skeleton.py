"""A model of transformers without memory for its weights, from a config alone.

No code that lies beside a checkpoint is ever executed: what `auto_map` points at is ignored.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import nn

from ortolan.modeling.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

IGNORED = ("auto_map", "quantization_config", "torch_dtype", "dtype", "transformers_version")
"""Keys of a config about the files that hold the weights and the program that wrote them."""

_INITIALISED = "_is_hf_initialized"
"""The attribute of a tensor that transformers leaves as it is when it initialises a model."""

INSTALL = "pip install 'ortolan[transformers]'"


def is_installed() -> bool:
    """Whether transformers can be imported."""
    return find_spec("transformers") is not None


def knows(model_type: str) -> bool:
    """Whether transformers, which is installed, has a causal language model of this type."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def is_causal_class(values: Mapping[str, object]) -> bool:
    """Whether a config.json names the class that transformers uses as its causal language model.

    Some of these are called `...ForConditionalGeneration`.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    classes = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(str(values.get("model_type")), ())
    names = values.get("architectures")
    usual = (classes,) if isinstance(classes, str) else tuple(classes)
    return isinstance(names, list) and bool(names) and names[0] in usual


def build_skeleton(values: Mapping[str, object]) -> "PreTrainedModel":
    """The causal language model that a config.json describes.

    Its parameters, and the buffers that a checkpoint holds, are on the device "meta"; the other
    buffers have the values that transformers computes for them.

    Args:
        values: of the config.json.

    Raises:
        ConfigError: transformers is not installed, has no such model, or refuses the config.
    """
    model_type = str(values.get("model_type"))
    if not is_installed():
        raise ConfigError(
            f"{model_type}: expected transformers, which this type needs, got none. "
            f"Install it: {INSTALL}."
        )
    if not knows(model_type):
        raise ConfigError(
            f"model_type: expected a causal language model of transformers, got {model_type!r:.80}."
            " Check config.json."
        )
    try:
        model = build(config_of(values))
        _compute_buffers(model)
    except Exception as error:  # transformers raises whatever a wrong value leads to
        raise ConfigError(
            f"config.json: expected a config of {model_type} that transformers can build, got "
            f"{type(error).__name__}: {str(error)[:300]}. Correct the config."
        ) from error
    model.eval()
    return model


def config_of(values: Mapping[str, object]) -> "PreTrainedConfig":
    """What transformers makes of a config.json of a type that it has."""
    from transformers import CONFIG_MAPPING

    config: PreTrainedConfig = CONFIG_MAPPING[str(values["model_type"])].from_dict(kept(values))
    return config


def build(config: "PreTrainedConfig") -> "PreTrainedModel":
    """The causal language model of a config, all of it on the device "meta"."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, trust_remote_code=False
        )
    return model


def kept(values: Mapping[str, object]) -> dict[str, object]:
    """What transformers is given of a config.json."""
    return {key: _plain(value) for key, value in values.items() if key not in IGNORED}


def _plain(value: object) -> object:
    """A value of a config.json; JSON has no infinity, so transformers writes an object for it."""
    match value:
        case {"__float__": str(number)}:
            return float(number)
        case list():
            return [_plain(each) for each in value]
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case _:
            return value


def _compute_buffers(model: "PreTrainedModel") -> None:
    """Give every buffer that no checkpoint holds its value, as loading a checkpoint does."""
    computed = dict(model.named_non_persistent_buffers())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name not in computed:
            setattr(tensor, _INITIALISED, True)
    for name, buffer in computed.items():
        place, _, own = name.rpartition(".")
        parent: nn.Module = model.get_submodule(place)
        parent.register_buffer(own, torch.empty_like(buffer, device="cpu"), persistent=False)
    model.initialize_weights()
