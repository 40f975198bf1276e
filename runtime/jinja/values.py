"""Values that only templates have: namespaces, loops, macros, functions and bound methods."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Undefined, UndefinedError

__all__ = ["Bound", "Function", "Loop", "Macro", "Namespace", "Scope", "undefined"]


class Scope:
    """Variables, and the scope around them. Assignments stay inside."""

    __slots__ = ("around", "values")

    def __init__(self, values: dict[str, Any], around: "Scope | None" = None) -> None:
        self.values = values
        self.around = around

    def lookup(self, name: str) -> Any:
        """The value of a variable, or an undefined one."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.around
        return undefined(name)


@dataclass(slots=True, eq=False, repr=False)
class Namespace:
    """What `namespace()` makes: attributes that inner scopes may assign."""

    values: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False, repr=False)
class Loop:
    """The variable `loop`."""

    items: Sequence[Any]
    depth0: int
    index0: int = 0
    seen: Any = None

    def get(self, name: str) -> Any:
        """An attribute of it."""
        length, index0 = len(self.items), self.index0
        match name:
            case "index0" | "depth0":
                return getattr(self, name)
            case "index":
                return index0 + 1
            case "revindex":
                return length - index0
            case "revindex0":
                return length - index0 - 1
            case "first":
                return index0 == 0
            case "last":
                return index0 == length - 1
            case "length":
                return length
            case "depth":
                return self.depth0 + 1
            case "previtem":
                return self.items[index0 - 1] if index0 else undefined("loop.previtem")
            case "nextitem":
                after = index0 + 1
                return self.items[after] if after < length else undefined("loop.nextitem")
            case "cycle":
                return Function(lambda *values: values[index0 % len(values)])
            case "changed":
                return Function(self._changed)
        return undefined(f"loop.{name}")

    def _changed(self, *values: Any) -> bool:
        changed: bool = self.seen != values
        self.seen = values
        return changed


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Macro:
    """A macro, and the scope that it was written in."""

    name: str
    parameters: tuple[str, ...]
    defaults: tuple[Any, ...]
    body: list[Any]
    scope: Scope


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Function:
    """A function that the template may call."""

    call: Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Bound:
    """A method of a string, a list or a dictionary, which the template is about to call."""

    value: Any
    name: str


def undefined(name: str) -> Undefined:
    """A variable or an attribute that there is not: empty where it is written, an error in use."""
    return Undefined(name=name, exc=UndefinedError)
