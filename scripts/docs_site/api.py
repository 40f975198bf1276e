"""Pages of the Python API: one per public class and function, one per package.

The page of a package has its docstring, and its errors and constants.
"""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = (
    "ortolan",
    "ortolan.runtime",
    "ortolan.modeling",
    "ortolan.export",
    "ortolan.server",
    "ortolan.signing",
)
"""Packages whose `__all__` is public. The first one that has an object gives it its name."""

KEYWORDS = (
    "ortolan.runtime.generation.options.BeamOptions",
    "ortolan.runtime.generation.options.Options",
    "ortolan.runtime.loading.LoadOptions",
    "ortolan.runtime.serving.encoder_service.EncoderServeOptions",
    "ortolan.runtime.serving.seq2seq_service.Seq2SeqServeOptions",
    "ortolan.runtime.serving.service.ServeOptions",
)
"""Typed dictionaries of the keyword arguments that public signatures name."""

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


def public_names(package: str) -> list[str]:
    """Full names in the `__all__` of a package."""
    return [f"{package}.{name}" for name in import_module(package).__all__]


def documented() -> list[Name]:
    """Every public object except packages, in the order of their names."""
    names: dict[int, list[str]] = {}
    values: dict[int, Any] = {}
    for name in (*(name for package in PACKAGES for name in public_names(package)), *KEYWORDS):
        package, _, attribute = name.rpartition(".")
        value = getattr(import_module(package), attribute)
        if not isinstance(value, ModuleType):
            values[id(value)] = value
            names.setdefault(id(value), []).append(name)
    return [
        Name(name=first, value=values[key], aliases=tuple(others))
        for key, (first, *others) in names.items()
    ]


def write_api(folder: Path) -> None:
    """Write every page of the API, and their index, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    owned: dict[str, list[Name]] = {package: [] for package in PACKAGES}
    for name in documented():
        package = name.name.rpartition(".")[0]
        owned[package if package in owned else "ortolan.runtime"].append(name)
        if name.has_page:
            (folder / f"{name.name}.rst").write_text(_object_page(name), encoding="utf-8")
    for package, names in owned.items():
        (folder / f"{package}.rst").write_text(_package_page(package, names), encoding="utf-8")
    (folder / "index.rst").write_text(_index(owned), encoding="utf-8")


def _is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _object_page(name: Name) -> str:
    if not isinstance(name.value, type):
        return _title(name.name) + f".. autofunction:: {name.name}\n"
    return _title(name.name) + (
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
    if pages:
        parts += [_table(pages), _toctree(name.name for name in pages)]
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
    return (inspect.getdoc(value) or "").partition("\n")[0]


def _title(text: str, mark: str = "=") -> str:
    return f"{text}\n{mark * len(text)}\n\n"


def _toctree(names: Iterable[str]) -> str:
    lines = (f"   {name.rpartition('.')[2]} <{name}>" for name in names)
    return ".. toctree::\n   :hidden:\n\n" + "\n".join(lines) + "\n"
