"""Runs JavaScript tests in Node, with what Python computes in a JSON file."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.hosts.node_package import installed_package

__all__ = ["camel", "places", "run_tests", "utf16"]

LIMITS = ("--test-force-exit", "--test-timeout=900000")
"""A failure would otherwise leave a model's threads, for which Node waits. In milliseconds."""


def run_tests(name: str, cases: Any, folder: Path) -> None:
    """Run `hosts/js/test/<name>.test.js`, which reads ORTOLAN_CASES, and show what failed."""
    package = installed_package()
    path = folder / f"{name}.json"
    path.write_text(json.dumps(cases))
    done = subprocess.run(
        ["node", "--expose-gc", "--test", *LIMITS, "--test-reporter=spec", f"test/{name}.test.js"],
        cwd=package,
        env={**os.environ, "ORTOLAN_CASES": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    _, _, failures = done.stdout.partition("failing tests:")
    assert done.returncode == 0, failures[:6000] + done.stderr[-2000:]
    assert "fail 0\n" in done.stdout
    assert "skipped 0\n" in done.stdout


def camel(options: dict[str, Any]) -> dict[str, Any]:
    """Options with the names that they have in JavaScript."""

    def name(key: str) -> str:
        first, *rest = key.split("_")
        return first + "".join(part.title() for part in rest)

    return {name(key): value for key, value in options.items()}


def utf16(text: str, place: int) -> int:
    """A place in a text, in UTF-16 code units."""
    return len(text[:place].encode("utf-16-le")) // 2


def places(text: str, span: tuple[int, int] | None) -> list[int] | None:
    """Start and end of a part of a text, in UTF-16 code units."""
    return None if span is None else [utf16(text, place) for place in span]
