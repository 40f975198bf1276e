"""Charts of stored results."""

import json
from pathlib import Path

import pytest

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


def test_an_unknown_kind_of_result_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="chart: a result has one of the keys speeds"):
        draw_result({"machine": {}}, tmp_path / "chart.svg")
