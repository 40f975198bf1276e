"""Errors that an export raises on purpose.

OrtolanError
└── ExportError
    ├── OptionError        an option cannot be honored
    ├── LayoutError        a model does not fit another layout
    ├── OutputError        the target is taken, locked or not writable
    ├── PlacementError     the device lacks kernels for some nodes
    ├── ParityError        the bundle disagrees with PyTorch
    └── WitnessError       the publisher's code disagrees with the bundle
"""

from collections.abc import Iterable
from typing import ClassVar

from ortolan.errors import OrtolanError


class ExportError(OrtolanError):
    """An export failed; root of this tree."""

    code: ClassVar[str] = "export"


class OptionError(ExportError):
    """An option, or a combination of options, cannot be honored."""

    code: ClassVar[str] = "option"


class LayoutError(ExportError):
    """A model cannot be written to, or read from, the layout of another program."""

    code: ClassVar[str] = "layout"


class OutputError(ExportError):
    """The bundle cannot be written to its target, which is left untouched."""

    code: ClassVar[str] = "output"


class PlacementError(ExportError):
    """The target device has no kernel for some nodes."""

    code: ClassVar[str] = "placement"


class ParityError(ExportError):
    """The bundle disagrees with PyTorch and was deleted."""

    code: ClassVar[str] = "parity"


class WitnessError(ExportError):
    """The publisher's code reads the checkpoint differently; the bundle was deleted."""

    code: ClassVar[str] = "witness"


def not_among(name: str, value: object, choices: Iterable[object]) -> OptionError:
    """The error for an option whose value is not one of its choices."""
    *names, last = (str(choice) for choice in choices if choice is not None)
    listed = f"{', '.join(names)} or {last}" if names else last
    return OptionError(f"{name} must be {listed} (got {value!r}).")
