from pathlib import Path

import numpy as np
import pytest

from embedding_quality import Agreement, Vectors, lines_of

N, E = 40, 16


def vectors(seed: int) -> Vectors:
    drawn = np.random.default_rng(seed).standard_normal((N, E)).astype(np.float32)
    normed: Vectors = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return normed


def test_vectors_agree_with_themselves() -> None:
    result = Agreement.of(vectors(0), vectors(0))
    assert result.cosine == pytest.approx(1)
    assert result.spearman == pytest.approx(1)
    assert result.nearest == 1


def test_a_rotation_keeps_the_ranking_but_not_the_cosine() -> None:
    turn, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((E, E)))
    result = Agreement.of(vectors(0), (vectors(0) @ turn).astype(np.float32))
    assert abs(result.cosine) < 0.5
    assert result.worst_cosine < result.cosine
    assert result.spearman > 0.999
    assert result.nearest == 1


def test_lines_are_distinct_and_spread_over_the_files(tmp_path: Path) -> None:
    file = tmp_path / "fortunes"
    lines = [f"a line with the number {number}" for number in range(10)]
    file.write_text("\n%\n".join([*lines, lines[0], "short", "x" * 500]), encoding="utf-8")
    assert lines_of([file], 5) == lines[::2]
    with pytest.raises(ValueError, match="11 lines are needed, but there are 10"):
        lines_of([file], 11)
