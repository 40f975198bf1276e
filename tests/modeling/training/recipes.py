"""Recipes of tiny models and their data modules."""

from pathlib import Path
from typing import Any

import torch

from ortolan.modeling.training import trainer
from ortolan.modeling.training.recipe import read_recipe

MODELS = Path(__file__).parents[3] / "models"

RECIPES = Path(__file__).parents[2] / "data" / "recipes"


def _recipe(name: str) -> str:
    """A recipe, whose tasks are in the folder of example models."""
    return (RECIPES / f"{name}.toml").read_text().replace("MODELS", str(MODELS))


LANGUAGE_MODEL = _recipe("language_model")

MASKED, SCRATCH, STARTED = map(_recipe, ("masked", "scratch", "started"))
"""A BERT that fills in words, one that classifies, and one that starts from the first."""

IMAGE_CLASSIFICATION, TRANSLATION = _recipe("images"), _recipe("translation")

ANSWERING = _recipe("answering")

LINE = "def add(first, second):\n    return first + second\n"

TEXTS = f"""
from ortolan.modeling.training import Texts

LINE = {LINE!r}

def read(*, held_out: int, train: int = 20) -> Texts:
    return Texts(
        train=[LINE * train, LINE.replace("add", "sum") * train],
        held_out=[LINE] * held_out,
        figures=lambda: {{"lines": train}},
    )
"""

LABELS = tuple(f"label{number}" for number in range(20))

LABELLED = f"""
from ortolan.modeling.training import LabelledTexts, Texts

LABELS = {LABELS!r}
WORDS = ("tree", "sea", "sun", "rock", "bird")

def text(label: int, number: int) -> str:
    first, second = WORDS[label % 5], WORDS[label // 5]
    lines = [f"def {{first}}_{{second}}(x{{n}}):\\n    return {{number + n}}" for n in range(4)]
    return "\\n".join(lines) + "\\n"

TRAIN = [(text(label, number), label) for label in range(20) for number in range(12)]
HELD_OUT = [(text(label, 50 + number), label) for label in range(20) for number in range(3)]

def read_texts() -> Texts:
    train, held_out = (["".join(text for text, _ in part)] for part in (TRAIN, HELD_OUT))
    return Texts(train=train, held_out=held_out)

def read_labelled(*, whole: bool = False) -> LabelledTexts:
    unlabelled = [text.upper() for text in read_texts().train] if whole else ()
    return LabelledTexts(labels=LABELS, train=TRAIN, held_out=HELD_OUT, unlabelled=unlabelled)
"""

IMAGES = """
import numpy as np
from ortolan.modeling.training import Images, LabelledImages

def images(count: int, seed: int) -> Images:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    pixels = rng.integers(0, 100, (count, 8, 8, 3))
    pixels[..., 2] += 100 * labels[:, None, None]
    return Images(pixels=pixels.astype(np.uint8), labels=labels)

def read(*, augmented: bool = False) -> LabelledImages:
    return LabelledImages(
        labels=("dark", "blue"),
        train=images(200, 0),
        held_out=images(40, 1),
        augment=(lambda pixels, generator: -pixels) if augmented else None,
    )
"""

PAIRS = """
import random

from ortolan.modeling.training import Pairs

NAMES = ("Paul", "Emma", "My sister", "Anna", "The old man", "He")
THINGS = (("apples", "pommes"), ("cats", "chats"), ("red hats", "chapeaux rouges"))

def sentences(count: int, seed: int) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    pairs = {}
    while len(pairs) < count:
        name = rng.choice(NAMES)
        counted = [(rng.randint(2, 9999), rng.choice(THINGS)) for _ in range(rng.randint(1, 4))]
        english, french = (
            " + ".join(f"{number} {thing[side]}" for number, thing in counted) for side in (0, 1)
        )
        pairs[f"{name} has {english} today."] = f"{name} a {french} aujourd'hui."
    return list(pairs.items())

def read(*, pairs: int = 400) -> Pairs:
    return Pairs(train=sentences(pairs, 0), held_out={"numbers": sentences(12, 1)})
"""

ANSWERS = """
import random

from ortolan.modeling.training import Answers

def texts(count: int, shortest: int, longest: int, seed: int) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    words = (" ".join(rng.choices("abc", k=rng.randint(shortest, longest))) for _ in range(count))
    return [(f"{text} |", text) for text in words]

def read() -> Answers:
    held_out = {"short": texts(60, 1, 2, 1), "long": texts(60, 8, 8, 2)}
    return Answers(train=texts(1000, 1, 4, 0), held_out=held_out)
"""

DATA = {
    LANGUAGE_MODEL: TEXTS,
    MASKED: LABELLED,
    SCRATCH: LABELLED,
    STARTED: LABELLED,
    IMAGE_CLASSIFICATION: IMAGES,
    TRANSLATION: PAIRS,
    ANSWERING: ANSWERS,
}


def write_recipe(folder: Path, recipe: str, old: str = "", new: str = "") -> Path:
    """Writes a recipe, with one change, and its data module."""
    assert old in recipe
    folder.mkdir(exist_ok=True)
    (folder / "data.py").write_text(DATA[recipe])
    path = folder / "recipe.toml"
    path.write_text(recipe.replace(old, new) if old else recipe + new)
    return path


def task_of(folder: Path, recipe: str, old: str = "", new: str = "") -> Any:
    """The task of a recipe, with one change, and random weights that are always the same."""
    path = write_recipe(folder, recipe, old, new)
    torch.manual_seed(0)
    return trainer.task_of(read_recipe(path), folder)
