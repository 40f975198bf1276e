"""The lines of a user's code that nodes of a graph, and errors, come from."""

import linecache
import re
import sys
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import fx, nn
from torch.fx.traceback import annotate
from torch.overrides import TorchFunctionMode

from ortolan import modeling

PLACE = "place"
"""Key of a node's annotation, a `Place`."""

Place = tuple[str, int, str]
"""File, line and function of the user's code."""

_MODELING = Path(str(modeling.__file__)).parent.resolve()

_LIBRARIES = [
    *(Path(str(torch.__file__)).parent.resolve(), _MODELING),
    Path(__file__).parents[1].resolve(),
]

_COLORS = re.compile(r"\x1b\[[0-9;]*m")


class Annotated(TorchFunctionMode):
    """Annotates every node with the user's line; torch itself keeps only the lines of `forward`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, under an annotation if a user's line calls it."""
        place, _ = place_of_call()
        if place is None:
            return func(*args, **(kwargs or {}))
        with annotate({PLACE: place}):
            return func(*args, **(kwargs or {}))


def place_of_call() -> tuple[Place | None, bool]:
    """The user's line that called the caller, and whether it did so through Ortolan's modules."""
    frame: FrameType | None = sys._getframe(2)
    through = False
    while frame is not None and is_of_library(frame.f_code.co_filename):
        through = through or is_of_ortolan(frame.f_code.co_filename)
        frame = frame.f_back
    if frame is None:
        return None, through
    return (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name), through


@cache
def is_of_ortolan(file: str) -> bool:
    """Whether a file defines a state, or another part of Ortolan."""
    path = Path(file).resolve()
    return any(path.is_relative_to(root) for root in _LIBRARIES[1:])


@cache
def is_of_library(file: str) -> bool:
    """Whether a file belongs to Python, torch or Ortolan, not to a user."""
    if file.startswith("<"):
        return True
    path = Path(file).resolve()
    return any(path.is_relative_to(root) for root in _LIBRARIES)


def line_of_node(node: fx.Node) -> str:
    """The user's line that a node comes from: " in `x.mean(1)` (model.py, line 7, in f)"."""
    place = (node.meta.get("custom") or {}).get(PLACE)
    return "" if place is None else described(*place)


def line_of_error(error: BaseException) -> str:
    """The user's line that raised an error; empty if none did."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not is_of_library(frame.filename)
    ]
    return described(frames[-1].filename, frames[-1].lineno or 0, frames[-1].name) if frames else ""


def line_of_model(error: BaseException) -> str:
    """The line of Ortolan's modules that raised an error, with the name of the module."""
    where, names = "", dict[int, str]()
    for frame, line in traceback.walk_tb(error.__traceback__):
        file, module = Path(frame.f_code.co_filename), frame.f_locals.get("self")
        if isinstance(module, nn.Module):
            for name, part in module.named_modules():
                names.setdefault(id(part), name)
        if file.resolve().is_relative_to(_MODELING):
            name = names.get(id(module), "")
            where = f" in {name}" if name else ""
            where += described(str(file), line, frame.f_code.co_name)
    return where


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without the colors of a terminal."""
    return _COLORS.sub("", str(error)).strip().partition("\n")[0][:200]


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that it was raised from."""
    while True:
        yield error
        cause = error.__cause__ or error.__context__
        if cause is None:
            return
        error = cause


def node_in(error: BaseException) -> fx.Node | None:
    """The node that torch was translating when an error was raised."""
    for cause in causes(error):
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            node = frame.f_locals.get("node")
            if isinstance(node, fx.Node):
                return node
    return None


def described(file: str, line: int, function: str) -> str:
    """A line as part of a sentence."""
    code = linecache.getline(file, line).strip()
    return f" in `{code}` ({Path(file).name}, line {line}, in {function})"
