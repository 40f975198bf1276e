import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import quality
from catalog import PRECISIONS
from divergence import Predictions, Quality, log_softmax
from ortolan.modeling.training.evaluation import bits_per_byte
from quality import SETTINGS, Text

P, V = 7, 11


def logits(seed: int) -> NDArray[np.float32]:
    return (5 * np.random.default_rng(seed).standard_normal((P, V))).astype(np.float32)


def test_divergence_matches_pytorch_in_float64() -> None:
    reference, other, targets = logits(0), logits(1), list(range(P))
    found = Predictions.of(reference, other, targets)
    expected = torch.log_softmax(torch.tensor(reference, dtype=torch.float64), 1)
    actual = torch.log_softmax(torch.tensor(other, dtype=torch.float64), 1)
    kl = torch.nn.functional.kl_div(actual, expected, log_target=True, reduction="none").sum(1)
    nats = torch.nn.functional.nll_loss(actual, torch.tensor(targets), reduction="none")
    np.testing.assert_allclose(found.kl, kl, rtol=1e-12)
    np.testing.assert_allclose(found.nats, nats, rtol=1e-12)
    assert found.agrees.tolist() == (expected.argmax(1) == actual.argmax(1)).tolist()


def test_a_model_does_not_diverge_from_itself() -> None:
    found = Predictions.of(logits(0), logits(0), [0] * P)
    assert not found.kl.any()
    assert found.agrees.all()


def test_adding_a_constant_to_all_logits_of_a_position_changes_nothing() -> None:
    shifted = logits(0) + np.float32(512)
    np.testing.assert_allclose(log_softmax(shifted), log_softmax(logits(0)), atol=1e-4)
    assert np.isfinite(log_softmax(np.array([[0, 1e4, -1e4]], np.float32))).all()


def test_summary_counts_each_prediction_once() -> None:
    first = Predictions.of(logits(0), logits(1), [0] * P)
    second = Predictions.of(logits(2)[:2], logits(2)[:2], [3, 4])
    found = Quality.of([first, second], text_bytes=20)
    assert found.mean_kl == pytest.approx(first.kl.sum() / (P + 2))
    assert found.max_kl == first.kl.max()
    assert found.top1_agreement == pytest.approx((first.agrees.sum() + 2) / (P + 2))
    nats = first.nats.sum() + second.nats.sum()
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / 20)


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    size=st.integers(1, 12),
)
def test_windows_predict_every_token_but_a_first_once(lengths: list[int], size: int) -> None:
    documents = tuple(tuple(range(100 * n, 100 * n + length)) for n, length in enumerate(lengths))
    text = Text(documents=documents, size_bytes=1)
    pieces = list(quality.windows(text, size))
    predicted = [target for piece in pieces for target in piece.targets]
    assert predicted == [token for ids in documents for token in ids[1:]]
    assert len(predicted) == text.predictions
    for piece in pieces:
        assert len(piece.targets) <= len(piece.ids) <= size
        assert piece.targets[-1] == piece.ids[-1] + 1


class Bigrams(torch.nn.Module):
    """Logits that depend on the window's length as well: another cut would show."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(ids.shape[1])[None, :, None]
        return torch.sin(ids[:, :, None] + steps * torch.arange(V))


def test_bits_per_byte_is_that_of_the_trainer() -> None:
    random = np.random.default_rng(0)
    text = Text(
        documents=tuple(tuple(random.integers(0, V, size).tolist()) for size in (30, 1, 8, 9)),
        size_bytes=100,
    )
    module = Bigrams()
    found = []
    for piece in quality.windows(text, 8):
        rows = module(torch.tensor([piece.ids]))[0, -len(piece.targets) :].numpy()
        found.append(Predictions.of(rows, rows, piece.targets))
    expected = bits_per_byte(
        module,  # type: ignore[arg-type]  # anything that gives logits will do
        text.documents,
        text.size_bytes,
        window=8,
    )
    assert Quality.of(found, text_bytes=100).bits_per_byte == pytest.approx(expected, rel=1e-6)


def test_settings_are_distinct_and_can_all_give_logits() -> None:
    named = [(setting.peer.name, setting.precision) for setting in SETTINGS]
    assert len(set(named)) == len(named)
    assert {precision for _, precision in named} == {*PRECISIONS, "int8"}
    assert not any(setting.peer.last_logits_only for setting in SETTINGS)
    for setting in SETTINGS:
        assert setting.peer.command(setting.precision, random=False) is not None


def test_settings_of_unknown_peers_are_refused() -> None:
    assert {setting.precision for setting in quality.chosen(["ortolan"])} == {
        *("fp32", "int8", "int4")
    }
    with pytest.raises(ValueError, match="got nobody"):
        quality.chosen(["nobody"])


def test_table_has_a_row_for_each_setting() -> None:
    entry = {
        **{"peer": "a", "precision": "int4", "mean_kl": 0.02, "max_kl": 1.0},
        **{"top1_agreement": 0.9, "bits_per_byte": 1.1, "model_bytes": 2**20},
    }
    document = {
        "checkpoint": "model",
        "held_out": {"documents": 1, "bytes": 2, "predictions": 3},
        "window": 8,
        "versions": {"a": {"engine": "1.0"}},
        "settings": [entry, entry],
    }
    text = quality.markdown(json.loads(json.dumps(document)))
    assert text.count("| a int4 | 2.0e-02 | 1.0e+00 | 0.9000 | 1.1000 | 1.0 |") == 2
    assert text.endswith("With engine 1.0.\n")
