"""Hooks for frozen applications. PyInstaller finds this folder by an entry point."""

import runpy
import sys
from pathlib import Path

CHILD = "ortolan.runtime.verification.first_load_child"
"""Module that a frozen program can run instead of its own: it has no Python to run it with."""

_watchers: list[str] = []


def hook_folders() -> list[str]:
    """Return the folders with hooks for PyInstaller."""
    return [str(Path(__file__).parent)]


def starts_no_child() -> bool:
    """Whether this program would run itself again instead of `CHILD`."""
    return bool(getattr(sys, "frozen", False)) and CHILD not in _watchers


def become_child_if_asked() -> None:
    """Run `CHILD` and exit if the command line says so; called before a frozen program starts."""
    _watchers.append(CHILD)
    if sys.argv[1:3] == ["-m", CHILD]:
        del sys.argv[1:3]
        runpy.run_module(CHILD, run_name="__main__", alter_sys=True)
        sys.exit()
