"""The picture of attention maps: its panels and their labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

from ortolan.cli import attention_picture
from ortolan.cli.attention_picture import Panel, choose, draw
from ortolan.runtime import InputError
from ortolan.runtime.attention_maps import AttentionMaps

SOURCE, READ, WRITTEN = ("I", "am", "</s>"), ("<s>", "je", "suis"), ("je", "suis", "</s>")
SIDES = {
    "encoder.0.self": (SOURCE, SOURCE),
    "decoder.0.self": (READ, READ),
    "decoder.0.cross": (WRITTEN, SOURCE),
    "decoder.1.self": (READ, READ),
    "decoder.1.cross": (WRITTEN, SOURCE),
}


def maps(*names: str) -> AttentionMaps:
    """Maps of four heads each."""
    random = np.random.default_rng(0)
    sides = {name: SIDES[name] for name in names or SIDES}
    return AttentionMaps(
        maps={name: random.dirichlet(np.ones(3), (4, 3)).astype(np.float32) for name in sides},
        queries={name: queries for name, (queries, _) in sides.items()},
        keys={name: keys for name, (_, keys) in sides.items()},
    )


def chosen(maps: AttentionMaps, **options: Any) -> list[Panel]:
    return choose(maps, **{"kind": None, "layers": None, "heads": None, "mean": False} | options)


def panel(shares: Any, *, queries: tuple[str, ...], keys: tuple[str, ...]) -> Panel:
    shares = np.asarray(shares, np.float32)
    return Panel(row="r", title="", shares=shares, queries=queries, keys=keys)


@pytest.mark.parametrize(
    ("options", "titles"),
    [
        ({"heads": [0]}, ["decoder layer 0, head 0", "decoder layer 1, head 0"]),
        (
            {"kind": "self", "layers": [0], "heads": [2]},
            ["encoder layer 0, head 2", "decoder layer 0, head 2"],
        ),
        ({"layers": [1], "mean": True}, ["decoder layer 1, mean of heads"]),
        ({}, [f"decoder layer {layer}, head {head}" for layer in (0, 1) for head in range(4)]),
    ],
)
def test_panels_follow_the_options(options: dict[str, Any], titles: list[str]) -> None:
    assert [panel.title for panel in chosen(maps(), **options)] == titles


def test_a_panel_has_the_map_and_the_tokens_of_its_layer_and_head() -> None:
    two = maps()
    (one,) = chosen(two, layers=[1], heads=[3])
    np.testing.assert_array_equal(one.shares, two.maps["decoder.1.cross"][3])
    assert (one.queries, one.keys) == (WRITTEN, SOURCE)

    (mean,) = chosen(two, layers=[1], heads=[0, 2], mean=True)
    expected = two.maps["decoder.1.cross"][[0, 2]].mean(0)
    np.testing.assert_allclose(mean.shares, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": [1]}, "layers: .* 1"),
        ({"heads": [4]}, "heads: .* 4"),
        ({"kind": "cross"}, "kind: .* cross"),
    ],
)
def test_a_missing_layer_head_or_kind_is_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        chosen(maps("encoder.0.self"), **options)


def test_labels_are_unparsed_and_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: dict[str, Any] = {}
    names = ("$x_1$", "\n", "a" * 40)

    def set_xticks(_: Axes, ticks: Any, labels: list[str], **options: Any) -> None:
        written["labels"], written["parse_math"] = labels, options["parse_math"]

    monkeypatch.setattr(Axes, "set_xticks", set_xticks)
    draw([panel(np.eye(3), queries=names, keys=names)], tmp_path / "picture.png")
    assert written["labels"] == ["$x_1$", "\\n", "a" * 15 + "…"]
    assert written["parse_math"] is False


def test_dark_cells_are_large_shares(tmp_path: Path) -> None:
    shares = [[1, 0, 0], [0, 0, 1]]
    draw([panel(shares, queries=("a", "b"), keys=("c", "d", "e"))], tmp_path / "picture.png")
    pixels = np.asarray(Image.open(tmp_path / "picture.png").convert("RGB")).astype(int)
    dark = (pixels[..., 2] - pixels[..., 0] > 60) & (pixels[..., 0] < 60)
    rows, columns = np.nonzero(dark)
    upper = rows < (rows.min() + rows.max()) / 2
    # the first query attends to the first key, the second to the last
    assert columns[upper].max() < columns[~upper].min()


@pytest.mark.parametrize("name", ["nowhere/x.png", "x.nonsense"])
def test_a_picture_that_cannot_be_written_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot write the picture"):
        draw(chosen(maps()), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_is_too_large_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_picture, "MAX_PIXELS", 10_000)
    with pytest.raises(InputError, match="--layers and --heads"):
        draw(chosen(maps()), tmp_path / "x.png")


def test_characters_that_the_font_lacks_are_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("\u4e2d", "a")
    draw([panel(np.eye(2), queries=names, keys=names)], tmp_path / "x.png")
    assert len(capsys.readouterr().err.splitlines()) == 1
