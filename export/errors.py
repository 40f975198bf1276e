"""What export raises on purpose.

OrtolanError
└── ExportError
    ├── OptionError        options that cannot be honoured
    ├── OutputError        the place of the bundle: taken, locked, not writable
    ├── PlacementError     nodes that the device has no kernel for
    └── ParityError        the bundle does not compute what PyTorch computes
"""

from collections.abc import Iterable
from typing import ClassVar

from ortolan.errors import OrtolanError


class ExportError(OrtolanError):
    """The root of this tree."""

    code: ClassVar[str] = "export"


class OptionError(ExportError):
    """An option, or a combination, that cannot be honoured."""

    code: ClassVar[str] = "option"


class OutputError(ExportError):
    """The bundle cannot be written to its place; what is there is untouched."""

    code: ClassVar[str] = "output"


class PlacementError(ExportError):
    """The device that a bundle is made for has no kernel for some of its nodes."""

    code: ClassVar[str] = "placement"


class ParityError(ExportError):
    """The bundle does not compute what PyTorch computes; it was not kept."""

    code: ClassVar[str] = "parity"


def not_among(name: str, value: object, choices: Iterable[object]) -> OptionError:
    """The error of an option that has another value than those offered."""
    names = ", ".join(str(choice) for choice in choices if choice is not None)
    return OptionError(f"{name}: expected one of {names}, got {value!r}.")
