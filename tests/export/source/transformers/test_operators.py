"""Operators and positions of transformers that a graph computes in another way."""

from typing import Any

import pytest
import torch
from tests.tiny.transformers_types import tiny_config
from transformers import AutoModelForCausalLM, PreTrainedModel

from ortolan.export.source.transformers.adapter import TransformersModule
from ortolan.export.source.transformers.operators import Complex, erfinv, known_operators
from ortolan.export.source.transformers.rotary import pin_rotary
from ortolan.modeling.state import State


def test_the_inverse_error_function_is_that_of_pytorch() -> None:
    x = torch.cat((torch.linspace(-0.99999, 0.99999, 2001), torch.tensor([0.0, 1e-6])))
    expected = torch.erfinv(x.double())
    torch.testing.assert_close(erfinv(x).double(), expected, rtol=1e-6, atol=1e-7)


def test_rotary_positions_by_complex_numbers_are_those_of_pytorch() -> None:
    def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        turn = torch.polar(torch.ones_like(angles), angles) * 1.5
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turn.unsqueeze(1)[:, :, :5].to(x.device)).flatten(3)

    torch.manual_seed(0)
    x, angles = torch.randn(2, 3, 5, 8), torch.randn(2, 5, 4)
    expected = rotated(x, angles)
    with known_operators():
        assert isinstance(torch.polar(angles, angles), Complex)
        got = rotated(x, angles)
    torch.testing.assert_close(got, expected)


def test_numbers_in_the_code_become_tensors_of_their_type() -> None:
    values = [2, 0.5, True, [1, 2], [[0.5, 1.5]], []]
    expected = [torch.tensor(value) for value in values]
    with known_operators():
        got = [torch.tensor(value) for value in values]
        narrow = torch.tensor(0.25, dtype=torch.float16)
    assert all(torch.equal(g, e) and g.dtype == e.dtype for g, e in zip(got, expected, strict=True))
    assert narrow.dtype == torch.float16


def test_distributions_check_their_parameters_again_afterwards() -> None:
    checks = torch.distributions.Distribution._validate_args
    with known_operators():
        assert not torch.distributions.Distribution._validate_args
        assert torch.distributions.Normal(0, 1).icdf(torch.tensor(0.95)).item() > 1.6
    assert torch.distributions.Distribution._validate_args == checks


# --- positions that stretch -----------------------------------------------------------------------

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
