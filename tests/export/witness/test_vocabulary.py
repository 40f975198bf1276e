"""Which tokens of a large vocabulary are asked about."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from ortolan.export.witness.topics import vocabulary

SIZE, ADDED = 300, (0, 1, 150, 299)


def ids(sha256: str = "a") -> list[int]:
    """The ids of all questions, for a checkpoint of this hash."""
    rows = [{"id": own, "content": f"<{own}>", "special": True} for own in ADDED]
    text = json.dumps({"added_tokens": rows})
    bundled: Any = SimpleNamespace(
        tokenizer=SimpleNamespace(vocab_size=SIZE, to_json=lambda: text),
        manifest=SimpleNamespace(provenance=SimpleNamespace(source_sha256=sha256)),
    )
    return [token for part in vocabulary.questions(bundled).values() for token in part]


def test_a_vocabulary_is_asked_about_as_a_whole() -> None:
    assert ids() == list(range(SIZE))


def test_added_tokens_and_their_neighbours_come_before_random_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vocabulary, "MOST", 100)
    monkeypatch.setattr(vocabulary, "NEAR", 3)
    monkeypatch.setattr(vocabulary, "AT_ONCE", 20)
    chosen = ids()
    near = [0, 1, 2, 3, 4, *range(147, 154), *range(296, 300)]
    assert set(near) <= set(chosen[:20])
    assert len(chosen) == len(set(chosen)) > 100
    assert ids() == chosen
    assert set(ids("b")) != set(chosen)
