"""What the witness of a bundle finds, asked in this process."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cases.comparison import findings

SOURCE, BUNDLE = "source", "bundle"
"""Folders of a checkpoint and of its bundle, in one folder."""


def agreed(folder: Path, *topics: str, bundle: str = BUNDLE) -> dict[str, int]:
    """Number of equal answers by topic, where all are."""
    found = findings(folder / SOURCE, folder / bundle)
    chosen = {name: found[name] for name in topics if name in found}
    problems = [f"{own}" for own in chosen.values() if own.first or own.unasked]
    assert not problems, problems
    far = [f"{own}" for own in chosen.values() if (own.largest or 0) > 1e-4]
    assert not far, far
    return {name: own.agreed for name, own in chosen.items()}


def differing(folder: Path, bundle: str = BUNDLE) -> dict[str, str]:
    """The first difference by topic, where there is one."""
    found = findings(folder / SOURCE, folder / bundle)
    return {name: own.first for name, own in found.items() if own.first is not None}


@contextmanager
def misread(file: Path, **values: Any) -> Iterator[None]:
    """Give a JSON file other values than those that an export read, as if it had misread them."""
    before = file.read_text()
    file.write_text(json.dumps(json.loads(before) | values))
    try:
        yield
    finally:
        file.write_text(before)
