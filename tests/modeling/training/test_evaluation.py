"""Bits per byte of a model."""

import math

import pytest
import torch
import torch.nn.functional as F
from tests.modeling.tiny_models import LLAMA

from ortolan.modeling import DecoderModel
from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.training.evaluation import bits_per_byte


@pytest.fixture
def small_model() -> DecoderModel:
    torch.manual_seed(0)
    return DecoderModel(config_from_hf(LLAMA | {"vocab_size": 50}))


def document(length: int) -> list[int]:
    return torch.randint(50, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def test_bits_per_byte_of_one_window_is_the_cross_entropy(small_model: DecoderModel) -> None:
    documents = [document(12), document(5)]
    nats = 0.0
    for ids in documents:
        logits = small_model(torch.tensor([ids]))[0].detach().double()
        for position, token in enumerate(ids[1:]):
            nats -= float(logits[position].log_softmax(-1)[token])
    measured = bits_per_byte(small_model, documents, 37, window=16)
    assert measured == pytest.approx(nats / math.log(2) / 37)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("length", [0, 1, 2, 5, 8, 9, 17, 30])
def test_every_token_but_the_first_is_predicted_once(length: int, window: int) -> None:
    # A uniform prediction costs log2(50) bits per token.
    class Uniform(DecoderModel):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

        def forward(self, input_ids: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
            assert input_ids.shape[1] <= window
            return torch.zeros(*input_ids.shape, 50)

    bits = bits_per_byte(Uniform(), [document(length)], 1, window=window)
    assert bits == pytest.approx(max(length - 1, 0) * math.log2(50))


def test_overlapping_windows_see_at_least_half_a_window(small_model: DecoderModel) -> None:
    ids, window = document(20), 8
    nats = 0.0
    for target in range(1, 20):
        # The first window predicts tokens 1 to 8, and each window after it, 4 tokens on, 4 more.
        start = 0 if target <= window else 4 * math.ceil((target - window) / 4)
        assert target - start >= min(target, window // 2)
        logits = small_model(torch.tensor([ids[start:target]]))[0, -1].detach()
        nats += float(F.cross_entropy(logits, torch.tensor(ids[target])))
    measured = bits_per_byte(small_model, [ids], 1, window=window)
    assert measured == pytest.approx(nats / math.log(2), rel=1e-5)
