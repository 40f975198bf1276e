"""Tiny models of transformers with weights large enough to make logits distinct."""

from typing import Any

import torch
import transformers
from tests.tiny.decoders import EVEN, VOCABULARY
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

LLAMA: dict[str, Any] = EVEN | {"num_attention_heads": 4, "num_key_value_heads": 2}
"""With several heads of keys, so that their order matters."""

MISTRAL = LLAMA | {"model_type": "mistral", "sliding_window": None}

QWEN2 = LLAMA | {"model_type": "qwen2", "num_hidden_layers": 3}

STABLELM = LLAMA | {"model_type": "stablelm", "partial_rotary_factor": 0.5}


def reference_model(
    values: dict[str, Any],
    *,
    seed: int = 0,
    architecture: str | None = None,
    spread: float = 0.3,
    attention: str = "eager",
) -> PreTrainedModel:
    """A transformers model with large random weights, biases and norms.

    Its class is `architecture`, or the causal language model of `model_type`. `spread` is the
    standard deviation of the weights.
    """
    values = dict(values)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    if architecture is None:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, attn_implementation=attention
        )
    else:
        kind = getattr(transformers, architecture)
        model = kind._from_config(config, attn_implementation=attention)
    model.eval()  # type: ignore[no-untyped-call]
    generator = torch.Generator().manual_seed(seed)
    # A bias of the logits, which transformers does not train.
    constants = [(name, b) for name, b in model.named_buffers() if name == "final_logits_bias"]
    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), *constants]:
            if isinstance(parameter, nn.Parameter) and not parameter.requires_grad:
                continue  # a fixed table
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(1 + 0.3 * noise if is_norm else spread * noise)
    return model


def random_text(length: int, *, batch: int = 1, seed: int = 0) -> Tensor:
    """Token ids, int64 `(batch, length)`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (batch, length), generator=generator)


def reference_logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Logits of a transformers model for whole sequences, `(B, S, V)` float32."""
    with torch.inference_mode():
        logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return logits.float()


def assert_same_logits(ours: Tensor, reference: Tensor) -> None:
    """Asserts that logits agree up to rounding."""
    assert ours.shape == reference.shape
    delta = float((ours - reference).abs().max())
    limit = 1e-4 * max(1.0, float(reference.abs().max()))
    assert delta <= limit, f"max |delta| {delta:.2e}, expected at most {limit:.2e}"
