"""Comparison of encoder-decoders that read sounds with transformers."""

from pathlib import Path
from typing import Any

import torch
from tests.modeling.tiny_encoders import EncoderCase
from tests.modeling.tiny_models import assert_same_logits
from torch import Tensor

from ortolan.modeling import EncoderDecoderModel, load

STEPS = 12


def logits(model: Any, source: Tensor, ids: Tensor) -> Tensor:
    """Those of transformers."""
    with torch.inference_mode():
        out: Tensor = model(**{model.main_input_name: source}, decoder_input_ids=ids).logits
    return out


def assert_like_transformers(case: EncoderCase, folder: Path, source: Tensor) -> None:
    """Compares the logits for three sounds."""
    reference = case.write(folder)
    ids = torch.randint(5, 90, (3, 9), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        ours = load(folder, EncoderDecoderModel)(source, ids)
    expected = logits(reference, source, ids)
    assert_same_logits(ours, expected)
    assert float(expected.std()) > 0.1, "outputs that do not discriminate"


def assert_same_greedy_tokens(case: EncoderCase, folder: Path, source: Tensor) -> None:
    """Compares the likeliest tokens for three sounds."""
    reference = case.write(folder)
    model = load(folder, EncoderDecoderModel)
    ours = expected = torch.full((3, 1), case.values["decoder_start_token_id"])
    for _ in range(STEPS):
        with torch.inference_mode():
            ours = torch.cat((ours, model(source, ours)[:, -1:].argmax(-1)), 1)
        expected = torch.cat((expected, logits(reference, source, expected)[:, -1:].argmax(-1)), 1)
    assert torch.equal(ours, expected)
    assert len({tuple(row) for row in ours.tolist()}) == 3, "tokens that ignore the sound"
