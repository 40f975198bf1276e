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


@pytest.mark.slow
@pytest.mark.parametrize("result", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_stored_result_can_be_drawn_again(result: Path, tmp_path: Path) -> None:
    draw_result(json.loads(result.read_text()), tmp_path / "chart.svg")
    picture = (tmp_path / "chart.svg").read_text()
    assert picture.count("<path") > 10  # bars, lines or letters


def test_a_result_with_times_gets_a_second_chart(tmp_path: Path) -> None:
    document = json.loads((RESULTS / "quality-smollm2-effort.json").read_text())
    draw_result(document, tmp_path / "chart.svg")
    assert (tmp_path / "chart-time.svg").is_file()


def test_lines_go_from_little_to_much_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[Sequence[float]] = []
    plot = Axes.plot

    def recorded(axes: Axes, x: Sequence[float], *args: Any, **kwargs: Any) -> Any:
        lines.append(x)
        return plot(axes, x, *args, **kwargs)

    monkeypatch.setattr(Axes, "plot", recorded)
    document = json.loads((RESULTS / "quality-smollm2-effort.json").read_text())
    draw_result(document, tmp_path / "chart.svg")
    assert len(lines) == 4  # two tools by size, and by time
    assert all(list(line) == sorted(line) for line in lines)


def test_an_unknown_kind_of_result_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="chart: a result has one of the keys speeds"):
        draw_result({"machine": {}}, tmp_path / "chart.svg")


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
