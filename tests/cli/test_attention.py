"""Pictures of attention maps: panels, labels, and maps over an image."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import Run
from tests.refusals import refusal

import ortolan as package
from ortolan.cli import attention_picture
from ortolan.cli.attention_picture import Panel, choose, draw, gazes
from ortolan.runtime.attention_maps import AttentionMaps, attention_maps
from ortolan.runtime.bundle.image_sources import ImageSource

MODELS = Path(__file__).parents[2] / "models"

SOURCE, READ, WRITTEN = ("I", "am", "</s>"), ("<s>", "je", "suis"), ("je", "suis", "</s>")
SIDES = {
    "encoder.0.self": (SOURCE, SOURCE),
    "decoder.0.self": (READ, READ),
    "decoder.0.cross": (WRITTEN, SOURCE),
    "decoder.1.self": (READ, READ),
    "decoder.1.cross": (WRITTEN, SOURCE),
}

IMAGES = ImageSource(
    channels=3, height=8, width=12, mean=(0.5,) * 3, std=(0.5,) * 3, scale=1 / 255, resample="box"
)


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


def panel(
    shares: Any, queries: tuple[str, ...], keys: tuple[str, ...], *, row: str = "encoder.0.self"
) -> Panel:
    shares = np.asarray(shares, np.float32)
    return Panel(row=row, title="layer", shares=shares, queries=queries, keys=keys)


def drawn_panel(queries: int, keys: int, *, row: str = "encoder.0.self") -> Panel:
    shares = np.random.default_rng(0).dirichlet(np.ones(keys), queries)
    return panel(shares, tuple("abcdefghijk"[:queries]), ("",) * keys, row=row)


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


def test_labels_are_unparsed_and_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: dict[str, Any] = {}
    names = ("$x_1$", "\n", "a" * 40)

    def set_xticks(_: Axes, ticks: Any, labels: list[str], **options: Any) -> None:
        written["labels"], written["parse_math"] = labels, options["parse_math"]

    monkeypatch.setattr(Axes, "set_xticks", set_xticks)
    draw([panel(np.eye(3), names, names)], tmp_path / "picture.png")
    assert written["labels"] == ["$x_1$", "\\n", "a" * 15 + "…"]
    assert written["parse_math"] is False


def test_dark_cells_are_large_shares(tmp_path: Path) -> None:
    shares = [[1, 0, 0], [0, 0, 1]]
    draw([panel(shares, ("a", "b"), ("c", "d", "e"))], tmp_path / "picture.png")
    pixels = np.asarray(Image.open(tmp_path / "picture.png").convert("RGB")).astype(int)
    dark = (pixels[..., 2] - pixels[..., 0] > 60) & (pixels[..., 0] < 60)
    rows, columns = np.nonzero(dark)
    upper = rows < (rows.min() + rows.max()) / 2
    # the first query attends to the first key, the second to the last
    assert columns[upper].max() < columns[~upper].min()


def test_characters_that_the_font_lacks_are_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("\u4e2d", "a")
    draw([panel(np.eye(2), names, names)], tmp_path / "x.png")
    assert len(capsys.readouterr().err.splitlines()) == 1


REFUSED: dict[str, Callable[[Path], object]] = {
    "no such layer": lambda _: chosen(maps("encoder.0.self"), layers=[1]),
    "no such head": lambda _: chosen(maps("encoder.0.self"), heads=[4]),
    "no such kind": lambda _: chosen(maps("encoder.0.self"), kind="cross"),
    "no such folder": lambda folder: draw(chosen(maps()), folder / "nowhere" / "x.png"),
    "no such format": lambda folder: draw(chosen(maps()), folder / "x.nonsense"),
    "too large": lambda folder: draw(50 * chosen(maps()), folder / "x.png"),
    "no grid of patches": lambda _: gazes([drawn_panel(3, 9)], IMAGES),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_drawn_is_an_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    if name == "too large":
        monkeypatch.setattr(attention_picture, "MAX_PIXELS", 10_000)
    formats = ", ".join(sorted(Figure().canvas.get_supported_filetypes()))
    assert refusal(lambda: REFUSED[name](tmp_path), tmp_path, formats) == snapshot
    assert list(tmp_path.iterdir()) == []


# --- over an image ----------------------------------------------------------------------------


@pytest.mark.parametrize("trained", [0, 1, 5])
def test_patches_lie_as_in_the_image(trained: int) -> None:
    shown = drawn_panel(6 + trained, 6 + trained)
    (gaze,) = gazes([shown], IMAGES)
    row = shown.shares[0] if trained else shown.shares.mean(0)
    assert gaze.shares.shape == (2, 3)
    assert np.array_equal(gaze.shares.ravel(), row[trained:])
    assert gaze.title == f"layer\n{'class token' if trained else 'mean of patches'}"


def test_every_written_token_has_a_gaze() -> None:
    shown = drawn_panel(3, 7, row="decoder.1.cross")
    found = gazes([shown], IMAGES)
    assert [gaze.title for gaze in found] == ["layer\n0 a", "layer\n1 b", "layer\n2 c"]
    assert np.array_equal(found[2].shares.ravel(), shown.shares[2, 1:])


@pytest.mark.slow
def test_the_command_draws_on_the_image(
    ortolan: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = package.ExportOptions(attention_maps=True, proof="quick")
    package.export(MODELS / "digits", tmp_path / "bundle", options=options)
    image, out = tmp_path / "digit.png", tmp_path / "gaze.png"
    Image.fromarray(np.load(MODELS / "digits" / "calibration.npy")[3, :, :, 0]).save(image)
    drawn: list[NDArray[np.float32]] = []
    original = Axes.imshow

    def imshow(axes: Axes, values: NDArray[np.float32], **options: object) -> object:
        drawn.append(values)
        return original(axes, values, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Axes, "imshow", imshow)
    words = ("attention", tmp_path / "bundle", image, "-o", out, "--over-image")
    done = ortolan(*words, "--layers", "2", "--heads", "1")
    assert done.returncode == 0, done.stderr
    seen, shares = drawn
    assert seen == pytest.approx(np.asarray(Image.open(image)) / 255, abs=1e-6)
    maps = attention_maps(tmp_path / "bundle", str(image)).maps["encoder.2.self"]
    assert shares.ravel() == pytest.approx(maps[1, 0, 1:])
    with Image.open(out) as picture:
        assert min(picture.size) > 100
