"""Tiny random models of transformers."""

from typing import Any

import torch
from tests.tiny.transformers_types import tiny_config
from transformers import AutoModelForCausalLM, PreTrainedModel


def tiny_model(
    model_type: str, *, deviation: float = 0.2, attention: str | None = None, **changes: Any
) -> PreTrainedModel:
    """A causal language model with large random weights.

    Args:
        model_type: of transformers.
        deviation: of its weights.
        attention: implementation in transformers.
        changes: of its config.
    """
    config = tiny_config(model_type)
    for name, value in changes.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    options = {} if attention is None else {"attn_implementation": attention}
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, **options).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith("A_log"):  # an exponent
                parameter.normal_(0, deviation)
    return model
