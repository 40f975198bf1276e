"""The picture of attention maps: which panels it has, and what it says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

from ortolan.cli import attention_picture
from ortolan.cli.attention_picture import choose, draw
from ortolan.runtime import InputError
from ortolan.runtime.attention_maps import AttentionMaps

SOURCE, READ, WRITTEN = ("I", "am", "</s>"), ("<s>", "je", "suis"), ("je", "suis", "</s>")
EVERY: dict[str, Any] = {"kind": None, "layers": None, "heads": None, "mean": False}


def translator() -> AttentionMaps:
    """Two layers of four heads each."""
    random = np.random.default_rng(0)
    sides = {
        "encoder.0.self": (SOURCE, SOURCE),
        "decoder.0.self": (READ, READ),
        "decoder.0.cross": (WRITTEN, SOURCE),
        "decoder.1.self": (READ, READ),
        "decoder.1.cross": (WRITTEN, SOURCE),
    }
    return AttentionMaps(
        maps={name: random.dirichlet(np.ones(3), (4, 3)).astype(np.float32) for name in sides},
        queries={name: queries for name, (queries, _) in sides.items()},
        keys={name: keys for name, (_, keys) in sides.items()},
    )


def titles(**options: Any) -> list[str]:
    return [panel.title for panel in choose(translator(), **EVERY | options)]


def test_cross_attention_is_chosen_where_there_is_a_source() -> None:
    assert titles(heads=[0]) == ["decoder layer 0, head 0", "decoder layer 1, head 0"]
    assert len(titles()) == 8


def test_self_attention_is_that_of_both_sides() -> None:
    assert titles(kind="self", layers=[0], heads=[2]) == [
        "encoder layer 0, head 2",
        "decoder layer 0, head 2",
    ]


def test_panels_hold_the_maps_and_the_tokens_of_their_layer_and_head() -> None:
    found = translator()

    (panel,) = choose(found, **EVERY | {"layers": [1], "heads": [3]})

    np.testing.assert_array_equal(panel.shares, found.maps["decoder.1.cross"][3])
    assert (panel.queries, panel.keys) == (WRITTEN, SOURCE)


def test_mean_is_that_of_the_chosen_heads() -> None:
    found = translator()

    (panel,) = choose(found, **EVERY | {"layers": [1], "heads": [0, 2], "mean": True})

    expected = found.maps["decoder.1.cross"][[0, 2]].mean(0)
    np.testing.assert_allclose(panel.shares, expected, rtol=1e-6)
    assert panel.title == "decoder layer 1, mean of heads"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layers": [2]}, "layers: expected 0 to 1, got 2"),
        ({"heads": [4]}, "heads: expected 0 to 3, got 4"),
    ],
)
def test_layer_or_head_that_is_not_there_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        titles(**options)


def test_kind_that_is_not_there_is_refused() -> None:
    found = translator()
    alone = AttentionMaps(
        maps={"encoder.0.self": found.maps["encoder.0.self"]},
        queries=found.queries,
        keys=found.keys,
    )

    with pytest.raises(InputError, match="kind: expected self, got cross"):
        choose(alone, **EVERY | {"kind": "cross"})


def test_picture_names_tokens_as_they_are_and_shortens_long_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: dict[str, Any] = {}
    names = ("$x_1$", "\n", "a" * 40)

    def set_xticks(_: Axes, ticks: Any, labels: list[str], **options: Any) -> None:
        written["labels"], written["parse_math"] = labels, options["parse_math"]

    monkeypatch.setattr(Axes, "set_xticks", set_xticks)
    shares = np.eye(3, dtype=np.float32)
    panel = attention_picture.Panel(row="r", title="t", shares=shares, queries=names, keys=names)
    draw([panel], tmp_path / "picture.png")

    assert written["labels"] == ["$x_1$", "\\n", "a" * 15 + "…"]
    assert written["parse_math"] is False


def test_dark_cells_are_large_shares(tmp_path: Path) -> None:
    shares = np.array([[1, 0, 0], [0, 0, 1]], np.float32)
    panel = attention_picture.Panel(
        row="r", title="", shares=shares, queries=("a", "b"), keys=("c", "d", "e")
    )

    draw([panel], tmp_path / "picture.png")

    pixels = np.asarray(Image.open(tmp_path / "picture.png").convert("RGB")).astype(int)
    dark = (pixels[..., 2] - pixels[..., 0] > 60) & (pixels[..., 0] < 60)
    rows, columns = np.nonzero(dark)
    upper = rows < (rows.min() + rows.max()) / 2
    # the first query looks at the first key, the second at the last
    assert columns[upper].max() < columns[~upper].min()


@pytest.mark.parametrize("name", ["nowhere/x.png", "x.nonsense"])
def test_place_that_takes_no_picture_is_refused(tmp_path: Path, name: str) -> None:
    panels = choose(translator(), **EVERY)

    with pytest.raises(InputError, match="expected a place for a picture"):
        draw(panels, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_picture_that_would_be_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_picture, "MAX_PIXELS", 10_000)

    with pytest.raises(InputError, match="Choose --layers and --heads"):
        draw(choose(translator(), **EVERY), tmp_path / "x.png")


def test_letters_that_the_font_lacks_are_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("\u4e2d", "a")
    panel = attention_picture.Panel(
        row="r", title="", shares=np.eye(2, dtype=np.float32), queries=names, keys=names
    )

    draw([panel], tmp_path / "x.png")

    assert len(capsys.readouterr().err.splitlines()) == 1
