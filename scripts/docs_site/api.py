"""Pages of the Python API: one per public class and function, one per package.

The page of a package has its docstring, and its errors and constants.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints, is_typeddict

import msgspec

from docs_site.docstrings import with_names

PACKAGES = (
    "ortolan",
    "ortolan.runtime",
    "ortolan.modeling",
    "ortolan.export",
    "ortolan.server",
    "ortolan.signing",
)
"""Packages whose `__all__` is public. The first one that has an object gives it its name."""

CALLED = {"ortolan.export": "ortolan.export.pipeline.export"}
"""Packages that can be called, and the function that a call runs."""

FOREIGN_BASES = "BaseException, Module, Struct, dict"
"""Bases of other projects, whose members are not shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A documented object.

    Attributes:
        name: the first of its public names, such as `ortolan.Decoder`.
        value: the object.
        aliases: its other names, such as `ortolan.runtime.Decoder`.
    """

    name: str
    value: Any
    aliases: tuple[str, ...]

    @property
    def has_page(self) -> bool:
        """Whether it is a class or function; errors and constants share a page."""
        return callable(self.value) and not _is_error(self.value)

    @property
    def is_public(self) -> bool:
        """Whether a package has it in `__all__`."""
        return self.name.rpartition(".")[0] in PACKAGES


def public_names(package: str) -> list[str]:
    """Full names in the `__all__` of a package."""
    return [f"{package}.{name}" for name in import_module(package).__all__]


@cache
def documented() -> tuple[Name, ...]:
    """Every public object except packages, then the records that their annotations name."""
    names: dict[int, list[str]] = {}
    values: dict[int, Any] = {}
    for name in (name for package in PACKAGES for name in public_names(package)):
        package, _, attribute = name.rpartition(".")
        value = getattr(import_module(package), attribute)
        if not isinstance(value, ModuleType):
            values[id(value)] = value
            names.setdefault(id(value), []).append(name)
    values |= {
        id(record): record for record in _records(values.values()) if id(record) not in values
    }
    return tuple(
        Name(name=first, value=value, aliases=tuple(others))
        for value in values.values()
        for first, *others in [names.get(id(value)) or [_place(value)]]
    )


def is_constructible(kind: type) -> bool:
    """Whether users construct the class: its arguments are documented, or not Ortolan's.

    Structs are decoded from files.
    """
    if _is_record(kind):
        return not issubclass(kind, msgspec.Struct)
    try:
        hints = get_type_hints(inspect.getattr_static(kind, "__init__"))
    except NameError:  # only type checkers import the names
        return False
    public = {id(name.value) for name in documented()}
    return all(
        id(item) in public or not getattr(item, "__module__", "").startswith("ortolan.")
        for hint in hints.values()
        for item in (hint, *get_args(hint))
    )


def write_api(folder: Path) -> None:
    """Write every page of the API, and their index, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    owned: dict[str, list[Name]] = {package: [] for package in PACKAGES}
    for name in documented():
        owned[max(filter(f"{name.name}.".startswith, owned), key=len)].append(name)
        if name.has_page:
            (folder / f"{name.name}.rst").write_text(_object_page(name), encoding="utf-8")
    for package, names in owned.items():
        (folder / f"{package}.rst").write_text(_package_page(package, names), encoding="utf-8")
    (folder / "index.rst").write_text(_index(owned), encoding="utf-8")


def _records(values: Iterable[Any]) -> dict[type, None]:
    """The dataclasses, structs and typed dictionaries of Ortolan that annotations of `values` name.

    Includes those that the annotations of such a record name.
    """
    found: dict[type, None] = {}
    todo = list(values)
    while todo:
        for record in _named(todo.pop(0)):
            if record not in found and record.__module__.startswith("ortolan."):
                found[record] = None
                todo.append(record)
    return found


def _named(value: Any) -> Iterator[type]:
    """Yield the records in the annotations of a function, or of a class and its methods."""
    described = [value] if callable(value) else []
    if isinstance(value, type):
        public = (name for name in dir(value) if not name.startswith("_"))
        members = (inspect.getattr_static(value, name) for name in public)
        described += [getattr(member, "fget", member) for member in members]
    for item in described:
        try:
            hints = get_type_hints(item)
        except (NameError, TypeError):  # names that only type checkers import; no annotations
            continue
        for hint in hints.values():
            yield from _inside(hint)


def _inside(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and _is_record(hint):
        yield hint
    for argument in get_args(hint):
        yield from _inside(argument)


def _is_record(value: type) -> bool:
    return is_dataclass(value) or is_typeddict(value) or issubclass(value, msgspec.Struct)


def _place(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _object_page(name: Name) -> str:
    title = _title(name.name if name.is_public else name.name.rpartition(".")[2])
    if not isinstance(name.value, type):
        return f"{title}.. autofunction:: {name.name}\n"
    return title + (
        f".. autoclass:: {name.name}\n   :members:\n   :inherited-members: {FOREIGN_BASES}\n"
    )


def _package_page(package: str, names: Iterable[Name]) -> str:
    pages = [name for name in names if name.has_page]
    others = [name for name in names if not name.has_page]
    errors = [name for name in others if _is_error(name.value)]
    constants = [name for name in others if not _is_error(name.value)]
    parts = [_title(package), f".. automodule:: {package}\n"]
    if package in CALLED:
        parts.append(f".. autofunction:: {CALLED[package]}\n")
    tables = {
        "Classes and functions": [name for name in pages if name.is_public],
        "Records that these accept and return": sorted(
            (name for name in pages if not name.is_public), key=lambda name: name.value.__name__
        ),
    }
    for title, rows in tables.items():
        if rows:
            parts += [_title(title, "-"), _table(rows), _toctree(name.name for name in rows)]
    if errors:
        parts.append(_title("Errors", "-"))
        parts += [
            f".. autoexception:: {name.name}\n   :members:\n   :show-inheritance:\n"
            for name in errors
        ]
    if constants:
        parts.append(_title("Constants", "-"))
        parts += [f".. autodata:: {name.name}\n" for name in constants]
    return "\n".join(parts)


def _index(owned: Mapping[str, Iterable[Name]]) -> str:
    summaries = [(package, _summary(import_module(package))) for package in owned]
    rows = [f"   * - :py:mod:`{package}`\n     - {text}" for package, text in summaries]
    parts = [_title("Python API"), ".. list-table::\n\n" + "\n".join(rows) + "\n"]
    return "\n".join([*parts, _toctree(owned)])


def _table(names: Iterable[Name]) -> str:
    """A table of names and the first lines of their docstrings."""
    rows = [f"   * - :py:obj:`~{name.name}`\n     - {_summary(name.value)}" for name in names]
    return ".. list-table::\n   :widths: auto\n\n" + "\n".join(rows) + "\n"


def _summary(value: Any) -> str:
    return with_names((inspect.getdoc(value) or "").partition("\n")[0])


def _title(text: str, mark: str = "=") -> str:
    return f"{text}\n{mark * len(text)}\n\n"


def _toctree(names: Iterable[str]) -> str:
    lines = (f"   {name.rpartition('.')[2]} <{name}>" for name in names)
    return ".. toctree::\n   :hidden:\n\n" + "\n".join(lines) + "\n"
