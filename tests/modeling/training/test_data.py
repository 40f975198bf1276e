"""The data of a recipe: importing, calling and checking its function, and the calibration file."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal

from ortolan.modeling.training.calibration import write_calibration
from ortolan.modeling.training.data import (
    Images,
    LabelledImages,
    LabelledTexts,
    Pairs,
    Texts,
    equal_share,
    read_data,
)
from ortolan.modeling.training.recipe import OptimizerRecipe, Recipe

READ = """
from ortolan.modeling.training import Pairs, Texts

def read(*, words: tuple[str, ...], times: int = 1) -> Texts:
    return Texts(train=[word * times for word in words], held_out=words)

def wrong():
    return 3

def pairs():
    return Pairs(train=[("a", "b")], held_out={"x": [("a", "b")]})

number = 3
"""

TRAINING = OptimizerRecipe(steps=1, batch_size=1, learning_rate=1.0, warmup_steps=0)


def recipe(source: object = "data.py:read", **options: object) -> Recipe:
    data = {"source": source, **options}
    return Recipe(task={}, model={}, data=data, training=TRAINING)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data.py").write_text(READ)
    (tmp_path / "absent.py").write_text("import no_such_package\n")
    return tmp_path


def test_keys_of_the_table_are_arguments_of_the_function(folder: Path) -> None:
    data = read_data(recipe(words=["a", "b"], times=2), folder, Texts)
    assert data == Texts(train=["aa", "bb"], held_out=("a", "b"))
    assert read_data(recipe(words=["a"]), folder, Texts).train == ["a"]


def test_a_data_module_may_import_its_neighbors(folder: Path) -> None:
    (folder / "grammar").mkdir()
    (folder / "grammar" / "nouns.py").write_text("NOUNS = ('tree', 'sea')\n")
    (folder / "data.py").write_text(
        "from ortolan.modeling.training import Texts\n"
        "from .grammar.nouns import NOUNS\n"
        "def read(): return Texts(train=NOUNS, held_out=NOUNS)\n"
    )
    assert read_data(recipe(), folder, Texts).train == ("tree", "sea")


def test_the_module_may_be_in_another_folder(folder: Path) -> None:
    (folder / "below").mkdir()
    data = read_data(recipe("../data.py:read", words=["a"]), folder / "below", Texts)
    assert data.train == ["a"]


def test_a_changed_module_is_read_again(folder: Path) -> None:
    read_data(recipe(words=["a"]), folder, Texts)
    (folder / "data.py").write_text(READ.replace("word * times", "word + word"))
    assert read_data(recipe(words=["a"]), folder, Texts).train == ["aa"]


WRONG: dict[str, Recipe] = {
    **{
        f"{source!r} as source": recipe(source)
        for source in (
            *(None, "data.py", "stdlib", "other.py:read", "data.py:reed", "data.py:number"),
            *("data.py:wrong", "data.py:pairs", "absent.py:read"),
        )
    },
    "no words": recipe(),
    "an unknown key": recipe(words=["a"], word=1),
    "a text as number": recipe(words=["a"], times="2"),
    "nothing to measure on": recipe(words=[]),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_invalid_table_is_refused(name: str, folder: Path, snapshot: SnapshotAssertion) -> None:
    assert refusal(lambda: read_data(WRONG[name], folder, Texts), folder) == snapshot


LABELS = np.zeros(2, np.int64)

PIXELS = np.zeros((2, 8, 8, 1), np.uint8)

NEGATIVE = Images(pixels=PIXELS, labels=np.array([0, -1]))

INVALID: dict[str, Callable[[], object]] = {
    "pixels as floats": lambda: Images(pixels=PIXELS.astype(np.float32), labels=LABELS),
    "no channels": lambda: Images(pixels=PIXELS[..., 0], labels=LABELS),
    "more images": lambda: Images(pixels=np.zeros((3, 8, 8, 1), np.uint8), labels=LABELS),
    "an absent label": lambda: LabelledTexts(
        labels=("a", "b"), train=[("x", 0), ("y", 2)], held_out=[("x", 0)]
    ),
    "a negative label": lambda: LabelledImages(
        labels=("a", "b"), train=NEGATIVE, held_out=NEGATIVE
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_data_is_refused(name: str, snapshot: SnapshotAssertion) -> None:
    assert refusal(INVALID[name]) == snapshot


def test_equal_share_compares_whole_texts() -> None:
    assert equal_share(["a b", "a"], ["a b", "b"]) == 0.5


# --- the calibration file: three quarters training data, one quarter held out --------------------


def test_the_last_quarter_of_a_text_is_held_out(tmp_path: Path) -> None:
    write_calibration(Texts(train=["a" * 900_000], held_out=["b" * 90_000]), tmp_path)
    text = (tmp_path / "calibration.txt").read_text()
    assert len(text) == 30 * 4096 * 4 // 3
    cut = len(text) - len(text) // 4
    assert set(text[:cut]) == {"a"}
    assert set(text[cut:]) == {"b"}


def test_a_short_text_keeps_the_shares(tmp_path: Path) -> None:
    for train, held_out in ((100, 2000), (2000, 100), (900, 300)):
        texts = Texts(train=["a" * train], held_out=["b" * held_out])
        write_calibration(texts, tmp_path)
        text = (tmp_path / "calibration.txt").read_text()
        assert "b" not in text[: len(text) - len(text) // 4]
        assert "a" not in text[len(text) - len(text) // 4 :]


def test_labelled_texts_are_written_as_text(tmp_path: Path) -> None:
    data = LabelledTexts(labels=("x",), train=[("aé\r\n" * 99, 0)], held_out=[("b" * 99, 0)])
    write_calibration(data, tmp_path)
    text = (tmp_path / "calibration.txt").read_bytes().decode()
    assert text.startswith("aé\r\n")
    assert text.endswith("b" * 90)


def test_pairs_are_written_as_lines_with_a_tab(tmp_path: Path) -> None:
    train = [("a\tb", "c"), ("a\nb", "c"), ("", "c")]
    train += [(f"one {n}", f"un {n}") for n in range(1000)]
    held_out = {"x": [("two", "deux")] * 100, "y": [("three\x0b", "trois")]}
    metrics = {"equal": equal_share}
    write_calibration(Pairs(train=train, held_out=held_out, metrics=metrics), tmp_path)
    lines = [line.split("\t") for line in (tmp_path / "calibration.tsv").read_text().splitlines()]
    assert len(lines) == 320
    assert all(source.startswith("one") for source, _ in lines[:240])
    assert lines[240:] == [["two", "deux"]] * 80
    assert len({source for source, _ in lines[:240]}) == 240


def test_images_are_written_as_an_array(tmp_path: Path) -> None:
    train, held_out = (
        Images(pixels=np.full((count, 4, 4, 3), value, np.uint8), labels=np.zeros(count, np.int64))
        for count, value in ((100, 1), (7, 2))
    )
    write_calibration(LabelledImages(labels=("x",), train=train, held_out=held_out), tmp_path)
    images = np.load(tmp_path / "calibration.npy")
    assert images.shape == (28, 4, 4, 3)
    assert images[:, 0, 0, 0].tolist() == [1] * 21 + [2] * 7


def test_too_little_data_writes_no_file(tmp_path: Path) -> None:
    write_calibration(Texts(train=["a"], held_out=["b"]), tmp_path)
    assert list(tmp_path.iterdir()) == []
