"""Python code that a recipe names, and the arguments that the recipe passes to it.

`source = "data.py:read"` names `read` in the file `data.py` next to the recipe. The other keys of
the table are its keyword arguments, checked against its annotations. The file may import its
neighbors (`from .grammar import sentences`) and any installed package.
"""

import importlib
import inspect
import itertools
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ortolan.modeling.errors import RecipeError

_NUMBERS = itertools.count()


def named_object(source: object, folder: Path, table: str) -> Callable[..., Any]:
    """The function or class that a table of the recipe names, such as `data.py:read`."""
    file, _, name = source.rpartition(":") if isinstance(source, str) else ("", "", "")
    if not (file.endswith(".py") and name.isidentifier()):
        raise RecipeError(
            f"{table}.source must name a file and an object in it, such as 'data.py:read' (got "
            f"{source!r})."
        )
    value = getattr(_module(folder / file, table), name, None)
    if not callable(value):
        raise RecipeError(
            f"{table}.source: {folder / file} has no function or class {name}. Write it, or "
            "correct the name."
        )
    return typing.cast(Callable[..., Any], value)


def _module(path: Path, table: str) -> types.ModuleType:
    """Import a file as a module of a fresh package, so that it can import its neighbors."""
    if not path.is_file():
        raise RecipeError(f"{table}.source: {path} does not exist. Write it, or correct the name.")
    package = types.ModuleType(f"_ortolan_recipe_{next(_NUMBERS)}")
    package.__path__ = [str(path.parent)]
    sys.modules[package.__name__] = package
    importlib.invalidate_caches()
    try:
        return importlib.import_module(f"{package.__name__}.{path.stem}")
    except ModuleNotFoundError as error:
        raise RecipeError(
            f"{path}: it imports {error.name}, which is not installed. Install it."
        ) from error


def arguments_of(
    function: Callable[..., object],
    options: Mapping[str, Any],
    table: str,
    *,
    other: Sequence[str] = (),
) -> dict[str, Any]:
    """Convert options to the types that the parameters of a function or class declare.

    The parameters `other` do not come from the table.
    """
    fields: list[Any] = []
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        kind = Any if parameter.annotation is parameter.empty else parameter.annotation
        if name not in other:
            default = () if parameter.default is parameter.empty else (parameter.default,)
            fields.append((name, kind, *default))
    struct = msgspec.defstruct(table, fields, kw_only=True, forbid_unknown_fields=True)
    try:
        return msgspec.structs.asdict(msgspec.convert(dict(options), struct))
    except msgspec.ValidationError as error:
        raise RecipeError(
            f"[{table}] does not match the arguments of {function.__name__}: {error}. Correct one "
            "of them."
        ) from error
