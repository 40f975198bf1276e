from typing import Any

import pytest
import torch
from tests.tiny.transformers_types import tiny_config
from transformers import AutoModelForCausalLM, PreTrainedModel

from ortolan.export.source.transformers.adapter import TransformersModule
from ortolan.export.source.transformers.rotary import PINNED, pin_rotary
from ortolan.modeling.state import State

ORIGINAL, LONGER = 32, 96

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.3 * i for i in range(8)],
    "original_max_position_embeddings": ORIGINAL,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}


def model_of(rope: dict[str, Any]) -> PreTrainedModel:
    config = tiny_config("llama")
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        type(config)(**config.to_dict() | {"rope_parameters": rope})
    ).eval()
    return model


@pytest.mark.parametrize(
    ("rope", "context", "length"),
    [(LONGROPE, ORIGINAL, ORIGINAL), (LONGROPE, LONGER, ORIGINAL + 5), (DYNAMIC, LONGER, 40)],
)
def test_frequencies_are_those_of_the_whole_context(
    rope: dict[str, Any], context: int, length: int
) -> None:
    ids = torch.randint(5, 100, (1, length), generator=torch.Generator().manual_seed(1))
    model = model_of(rope)
    with torch.inference_mode():
        expected = model(ids, use_cache=False).logits
        pin_rotary(model, context)
        pinned = model(ids, use_cache=False).logits
        over_a_state = TransformersModule(model, context)(ids, State.whole())
    torch.testing.assert_close(pinned, expected)
    torch.testing.assert_close(over_a_state, expected, rtol=1e-4, atol=1e-5)


def test_frequencies_do_not_change_with_the_length() -> None:
    model = model_of(LONGROPE)
    pin_rotary(model, LONGER)
    ids = torch.randint(5, 100, (1, LONGER))
    with torch.inference_mode():
        whole, start = model(ids).logits, model(ids[:, :5]).logits
    torch.testing.assert_close(start, whole[:, :5])


def test_other_positions_are_left_alone() -> None:
    model = model_of({"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0})
    pin_rotary(model, LONGER)
    kinds = {kind for m in model.modules() if (kind := getattr(m, "rope_type", None))}
    assert kinds == {"linear"}
    assert PINNED not in kinds
