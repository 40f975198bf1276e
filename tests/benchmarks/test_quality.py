import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import quality
import texts
from catalog import PRECISIONS
from divergence import Predictions, Quality
from settings import SETTINGS

P, V = 7, 11


def logits(seed: int) -> NDArray[np.float32]:
    return (5 * np.random.default_rng(seed).standard_normal((P, V))).astype(np.float32)


def test_divergence_matches_pytorch_in_float64() -> None:
    reference, other, targets = logits(0), logits(1), list(range(P))
    result = Predictions.of(reference, other, targets)
    expected = torch.log_softmax(torch.tensor(reference, dtype=torch.float64), 1)
    actual = torch.log_softmax(torch.tensor(other, dtype=torch.float64), 1)
    kl = torch.nn.functional.kl_div(actual, expected, log_target=True, reduction="none").sum(1)
    nats = torch.nn.functional.nll_loss(actual, torch.tensor(targets), reduction="none")
    np.testing.assert_allclose(result.kl, kl, rtol=1e-12)
    np.testing.assert_allclose(result.nats, nats, rtol=1e-12)
    assert result.agrees.tolist() == (expected.argmax(1) == actual.argmax(1)).tolist()


def test_summary_counts_each_prediction_once() -> None:
    first = Predictions.of(logits(0), logits(1), [0] * P)
    second = Predictions.of(logits(2)[:2], logits(2)[:2], [3, 4])
    result = Quality.of([first, second], text_bytes=20)
    assert result.mean_kl == pytest.approx(first.kl.sum() / (P + 2))
    assert result.max_kl == first.kl.max()
    assert result.top1_agreement == pytest.approx((first.agrees.sum() + 2) / (P + 2))
    nats = first.nats.sum() + second.nats.sum()
    assert result.bits_per_byte == pytest.approx(nats / math.log(2) / 20)


def test_settings_are_distinct_and_return_logits() -> None:
    names = [setting.name for setting in SETTINGS]
    assert len(set(names)) == len(names)
    folders = [(setting.peer.name, setting.precision) for setting in SETTINGS]
    assert len(set(folders)) == len(folders)
    assert {setting.precision for setting in SETTINGS} == {*PRECISIONS, "int8", "auto"}
    assert not any(setting.peer.last_logits_only for setting in SETTINGS)
    for setting in SETTINGS:
        assert setting.peer.command(setting.precision, random=False)


def row(tool: str, label: str, size: int, kl: float = 0.02) -> dict[str, object]:
    return {
        **{"tool": tool, "label": label, "precision": "int4"},
        **{"mean_kl": kl, "p99_kl": 0.5, "max_kl": 1.0, "top1_agreement": 0.9},
        **{"bits_per_byte": 1.1, "file_bytes": size},
    }


def document(*rows: dict[str, object], source: str = "a text") -> dict[str, object]:
    return {
        "checkpoint": "model",
        "text": {"source": source, "bytes": 2, "predictions": 3, "window": 8},
        "versions": {"a": {"engine": "1.0"}},
        "settings": list(rows),
    }


def test_rows_and_note_of_earlier_runs_stay_unless_the_text_changes(tmp_path: Path) -> None:
    path = tmp_path / "quality-model.json"

    def rows_of_file() -> list[tuple[str, str, float]]:
        rows = json.loads(path.read_text())["settings"]
        return [(row["tool"], row["label"], row["mean_kl"]) for row in rows]

    first = document(row("a", "big", 3_000_000), row("b", "one", 10))
    quality.publish({**first, "note": "Stored in 4 bits."}, path)
    quality.publish(document(row("b", "one", 10, 0.1), row("a", "small", 2_000_000)), path)
    assert rows_of_file() == [("a", "small", 0.02), ("a", "big", 0.02), ("b", "one", 0.1)]
    text = path.with_suffix(".md").read_text()
    assert "| a small | 2.0 | 0.02 | 0.5 | 1 | 0.9000 | 1.1000 |" in text
    assert text.endswith("With engine 1.0.\n")
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "\n\nStored in 4 bits.\n\n| " in text
    quality.publish(document(row("c", "new", 10), source="another"), path)
    assert rows_of_file() == [("c", "new", 0.02)]


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4), size=st.integers(1, 12))
def test_windows_predict_every_token_but_the_first_once(lengths: list[int], size: int) -> None:
    documents = tuple(tuple(range(100 * n, 100 * n + length)) for n, length in enumerate(lengths))
    text = texts.Text(source="", documents=documents, size_bytes=1, window=size)
    pieces = list(texts.cut(text))
    predicted = [target for piece in pieces for target in piece.targets]
    assert predicted == [token for ids in documents for token in ids[1:]]
    assert len(predicted) == text.predictions
    for piece in pieces:
        assert len(piece.targets) <= len(piece.ids) <= size
        assert piece.targets[-1] == piece.ids[-1] + 1
