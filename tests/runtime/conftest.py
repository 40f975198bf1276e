"""Bundles that take long to make, made once."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest


@pytest.fixture
def memory_left(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets a test say how many bytes this machine has left, and has the smallest needs checked."""
    from ortolan.runtime.engine import memory_plan

    def say(count: int) -> None:
        monkeypatch.setattr(memory_plan, "SMALL_BYTES", 0)
        monkeypatch.setattr(memory_plan, "available_memory", lambda root: count)
        monkeypatch.setattr(memory_plan, "free_swap", lambda root: 0)

    return say


@pytest.fixture(scope="session")
def exported(
    tmp_path_factory: pytest.TempPathFactory, quick_exports: None
) -> Callable[[str], Path]:
    """The folder that holds the `bundle` and the `checkpoint` of a tiny translator's family."""

    @cache
    def folder(family: str) -> Path:
        from tests.runtime.tiny_translators import write_bundle  # imports PyTorch

        made = tmp_path_factory.mktemp(family)
        write_bundle(family, made)
        return made

    return folder
