"""The distribution that is installed: `ortolan`, or `ortolan-runtime`, which only runs bundles."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

LEFT_OUT = ("modeling", "export")
"""Packages that `ortolan-runtime` does not contain."""

_FOLDER = Path(__file__).parent


def is_runtime_only(folder: Path = _FOLDER) -> bool:
    """Whether a package `ortolan` contains neither `modeling` nor `export`.

    A checkout without symbolic links has files in their place, so it is not mistaken for one.
    """
    if hasattr(sys, "frozen"):  # modules are in an archive
        return not any(find_spec(f"ortolan.{name}") for name in LEFT_OUT)
    return not any(os.path.lexists(folder / name) for name in LEFT_OUT)


def missing_rooms(folder: Path = _FOLDER) -> list[str]:
    """Return the folders that a package `ortolan` should contain but does not."""
    if hasattr(sys, "frozen"):  # whoever froze it chose the modules
        return []
    needed = ("runtime",) if is_runtime_only(folder) else (*LEFT_OUT, "runtime")
    return [name for name in needed if not (folder / name).is_dir()]


def pip_install(extra: str) -> str:
    """Return the command that installs an extra of this distribution."""
    if not is_runtime_only():
        return f'pip install "ortolan[{extra}]"'
    if extra == "cpu":
        return "pip install ortolan-runtime"
    return f'pip install "ortolan-runtime[{extra}]"'
