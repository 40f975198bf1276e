"""A folder that stands for `/`, with chosen files of `proc` and `sys`."""

import os
from pathlib import Path

import pytest


def write_root(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def use_cores(monkeypatch: pytest.MonkeyPatch, *logical: int) -> None:
    """Let the process run on these logical cores only."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(logical))
