"""Builds a model of transformers without memory for its weights, from a config alone.

Code in a checkpoint is never executed: `auto_map` is ignored.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from ortolan.export.source.transformers.private import causal_classes, compute_buffers
from ortolan.modeling.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

IGNORED = ("auto_map", "quantization_config", "torch_dtype", "dtype", "transformers_version")
"""Config keys about the weights' files and the program that wrote them."""

INSTALL = "pip install 'ortolan[export]'"


def is_installed() -> bool:
    """Whether transformers can be imported."""
    return find_spec("transformers") is not None


def knows(model_type: str) -> bool:
    """Whether the installed transformers has a causal language model of this type."""
    return bool(causal_classes(model_type))


def is_causal_class(values: Mapping[str, object]) -> bool:
    """Whether a config.json names transformers' class of causal language models for its type.

    Some of these are called `...ForConditionalGeneration`.
    """
    names = values.get("architectures")
    classes = causal_classes(str(values.get("model_type")))
    return isinstance(names, list) and bool(names) and names[0] in classes


def build_skeleton(values: Mapping[str, object]) -> "PreTrainedModel":
    """Build the causal language model of a config.json.

    Its parameters, and the buffers that a checkpoint holds, are on `meta`. The other buffers have
    the values that transformers computes.
    """
    model_type = str(values.get("model_type"))
    if not is_installed():
        raise ConfigError(
            f"{model_type}: this type needs transformers, which is not installed: {INSTALL}."
        )
    if not knows(model_type):
        raise ConfigError(
            f"model_type: transformers has no causal language model {model_type!r:.80}. Check "
            "config.json."
        )
    try:
        model = build(config_of(values))
        compute_buffers(model)
    except Exception as error:  # a wrong value can raise anything in transformers
        raise ConfigError(
            f"config.json: transformers cannot build this {model_type}: {type(error).__name__}: "
            f"{str(error)[:300]}. Correct the config."
        ) from error
    model.eval()
    return model


def config_of(values: Mapping[str, object]) -> "PreTrainedConfig":
    """Read a config.json of a known type as transformers' config."""
    from transformers import CONFIG_MAPPING

    config: PreTrainedConfig = CONFIG_MAPPING[str(values["model_type"])].from_dict(
        passed_values(values)
    )
    return config


def build(config: "PreTrainedConfig") -> "PreTrainedModel":
    """Build the causal language model of a config on `meta`."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, trust_remote_code=False
        )
    return model


def passed_values(values: Mapping[str, object]) -> dict[str, object]:
    """The values of a config.json that are passed to transformers."""
    return {key: _plain(value) for key, value in values.items() if key not in IGNORED}


def _plain(value: object) -> object:
    """Decode a value: JSON has no infinity, so transformers writes an object for it."""
    match value:
        case {"__float__": str(number)}:
            return float(number)
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case _:
            return value
