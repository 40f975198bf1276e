"""Charts of stored results."""

import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.text import Annotation

from result_charts import draw_result

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_labels_of_points_do_not_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels: list[Annotation] = []
    annotate = Axes.annotate

    def recorded(axes: Axes, *args: Any, **kwargs: Any) -> Annotation:
        labels.append(annotate(axes, *args, **kwargs))
        return labels[-1]

    monkeypatch.setattr(Axes, "annotate", recorded)
    document = json.loads((RESULTS / "quality-smollm2.json").read_text())
    draw_result(document, tmp_path / "chart.svg")
    boxes = [label.get_window_extent() for label in labels]
    assert len(boxes) == sum(row["precision"] != "fp32" for row in document["settings"])
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_a_line_joins_only_points_that_beat_all_cheaper_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[Sequence[float]] = []
    monkeypatch.setattr(Axes, "plot", lambda _, x, y, **__: lines.append(y))
    document = json.loads((RESULTS / "quality-smollm2.json").read_text())
    draw_result(document, tmp_path / "chart.svg")
    kl = {row["label"]: row["mean_kl"] for row in document["settings"]}
    assert [kl["Q4_0"], kl["Q4_1"]] in lines  # Q4_K_M and larger ones are worse than Q4_1
