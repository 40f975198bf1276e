"""The data function of a recipe: importing, calling and checking it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortolan.modeling.errors import RecipeError
from ortolan.modeling.training.data import (
    Images,
    LabelledImages,
    LabelledTexts,
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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (recipe(None), r"data\.source .*None"),
        (recipe("data.py"), r"data\.source .*'data\.py'"),
        (recipe("stdlib"), r"data\.source .*'stdlib'"),
        (recipe("other.py:read"), r"data\.source: .*other\.py"),
        (recipe("data.py:reed"), r"data\.source: .*data\.py .*reed"),
        (recipe("data.py:number"), r"data\.source: .*number"),
        (recipe("data.py:wrong"), r"Texts.* data\.py:wrong .*int"),
        (recipe("data.py:pairs"), r"Texts.* data\.py:pairs .*Pairs"),
        (recipe("absent.py:read"), r"absent\.py: .*no_such_package"),
        (recipe(), r"data.*read: .*`words`"),
        (recipe(words=["a"], word=1), r"data.*`word`"),
        (recipe(words=["a"], times="2"), r"data.*`int`, got `str` - at `\$\.times`"),
        (recipe(words=[]), r"\b0 to measure on"),
    ],
)
def test_an_invalid_table_is_an_error_that_names_the_key(
    folder: Path, wrong: Recipe, message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        read_data(wrong, folder, Texts)


def test_invalid_images_are_an_error() -> None:
    labels = np.zeros(2, np.int64)
    wrong: list[Any] = [np.zeros((2, 8, 8, 1), np.float32), np.zeros((2, 8, 8), np.uint8)]
    for pixels in wrong:
        with pytest.raises(RecipeError, match="uint8"):
            Images(pixels=pixels, labels=labels)
    with pytest.raises(RecipeError, match="N labels"):
        Images(pixels=np.zeros((3, 8, 8, 1), np.uint8), labels=labels)


def test_an_invalid_label_is_an_error() -> None:
    with pytest.raises(RecipeError, match=r"0 to 1 .*2"):
        LabelledTexts(labels=("a", "b"), train=[("x", 0), ("y", 2)], held_out=[("x", 0)])
    images = Images(pixels=np.zeros((2, 8, 8, 1), np.uint8), labels=np.array([0, -1]))
    with pytest.raises(RecipeError, match="-1"):
        LabelledImages(labels=("a", "b"), train=images, held_out=images)


def test_equal_share_compares_whole_texts() -> None:
    assert equal_share(["a b", "a"], ["a b", "b"]) == 0.5
