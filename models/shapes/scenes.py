"""Scenes of shapes on a grid, and questions about them with their answers.

A scene has 2 to 5 shapes in different cells of a grid of 3 by 3. A tenth of all pairs of shape and
color never occurs in training; half of the held-out scenes have at least one such pair.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

SIDE, CELL = 48, 16

SHAPES = ("circle", "square", "triangle", "cross")

COLORS = {
    "red": (214, 40, 40),
    "green": (46, 160, 67),
    "blue": (38, 84, 200),
    "yellow": (244, 208, 63),
    "purple": (142, 68, 173),
    "black": (25, 25, 25),
}

UNSEEN = {("cross", "green"), ("triangle", "purple")}

NUMBERS = ("no", "one", "two", "three", "four", "five")


class Item(NamedTuple):
    """A shape in a cell of the grid."""

    shape: str
    color: str
    row: int
    column: int

    @property
    def name(self) -> str:
        """Color and shape."""
        return f"{self.color} {self.shape}"


class Example(NamedTuple):
    """A picture, a question about it, and the answer."""

    picture: Image.Image
    question: str
    answer: str


def scene(random: np.random.Generator, *, unseen: bool | None = False) -> list[Item]:
    """Place shapes: with a pair that training never shows, without one, or (None) either."""
    while True:
        cells = random.permutation(9)[: random.integers(2, 6)]
        items = [
            Item(str(random.choice(SHAPES)), str(random.choice([*COLORS])), cell // 3, cell % 3)
            for cell in cells.tolist()
        ]
        is_unseen = any((item.shape, item.color) in UNSEEN for item in items)
        if unseen is None or unseen == is_unseen:
            return items


def draw(items: list[Item], random: np.random.Generator) -> Image.Image:
    """Draw a scene; sizes, places and the background vary a little."""
    shade = int(random.integers(225, 256))
    picture = Image.new("RGB", (SIDE, SIDE), (shade, shade, shade))
    pen = ImageDraw.Draw(picture)
    for item in items:
        size = int(random.integers(9, 14))
        left = item.column * CELL + int(random.integers(1, CELL - size))
        top = item.row * CELL + int(random.integers(1, CELL - size))
        right, bottom, color = left + size, top + size, COLORS[item.color]
        match item.shape:
            case "circle":
                pen.ellipse((left, top, right, bottom), fill=color)
            case "square":
                pen.rectangle((left, top, right, bottom), fill=color)
            case "triangle":
                middle = (left + right) // 2
                pen.polygon(((middle, top), (right, bottom), (left, bottom)), fill=color)
            case "cross":
                third = size // 3
                pen.rectangle((left, top + third, right, bottom - third), fill=color)
                pen.rectangle((left + third, top, right - third, bottom), fill=color)
    return picture


def questions(items: list[Item]) -> list[tuple[str, str]]:
    """All questions about a scene that have one answer, with it."""
    asked = []
    for shape in SHAPES:
        same = [item for item in items if item.shape == shape]
        asked.append((f"How many {_plural(shape)} are there?", NUMBERS[len(same)]))
        asked.append((f"Is there a {shape}?", "yes" if same else "no"))
        if len(same) == 1:
            asked.append((f"What color is the {shape}?", same[0].color))
    for color in COLORS:
        same = [item for item in items if item.color == color]
        if len(same) == 1:
            asked.append((f"What shape is {color}?", same[0].shape))
    names = [item.name for item in items]
    for item in items:
        if names.count(item.name) > 1:
            continue
        right = [other for other in items if other.row == item.row and other.column > item.column]
        below = [other for other in items if other.column == item.column and other.row > item.row]
        for found, where in ((right, "to the right of"), (below, "below")):
            nearest = min(found, key=lambda other: (other.column, other.row), default=None)
            answer = "nothing" if nearest is None else f"a {nearest.name}"
            asked.append((f"What is {where} the {item.name}?", answer))
    ordered = sorted(items, key=lambda item: (item.row, item.column))
    asked.append(("What do you see?", ", ".join(f"a {item.name}" for item in ordered)))
    return asked


def examples(seed: int, *, unseen: bool | None = False) -> Iterator[Example]:
    """Examples without end: kinds of questions are equally frequent."""
    random = np.random.default_rng(seed)
    while True:
        items = scene(random, unseen=unseen)
        by_kind: dict[str, list[tuple[str, str]]] = {}
        for question, answer in questions(items):
            by_kind.setdefault(kind_of(question), []).append((question, answer))
        kinds = sorted(by_kind)
        chosen = by_kind[kinds[random.integers(len(kinds))]]
        question, answer = chosen[random.integers(len(chosen))]
        yield Example(draw(items, random), question, answer)


def kind_of(question: str) -> str:
    """The kind of a question, by which it is counted."""
    for start in ("How many", "Is there", "What color", "What shape", "What do you see"):
        if question.startswith(start):
            return start
    return "Where"


def _plural(shape: str) -> str:
    return f"{shape}es" if shape == "cross" else f"{shape}s"
