"""Skipped tests: which reasons are allowed, and one line that counts them.

With ORTOLAN_TEST_SKIPS=listed, as in `.ci/run`, another reason fails the run.
"""

import os
import re
from collections import Counter

import pytest

VARIABLE = "ORTOLAN_TEST_SKIPS"

ALLOWED = {
    "an NVIDIA GPU": r"^no (NVIDIA|onnxruntime-gpu|lib\w+\.so)|^device 'cuda'",
    "a GPU, or one in software": "finds no GPU|[vV]ulkan|SwiftShader|mount namespace",
    "a machine without a GPU": "^this machine has a GPU",
    "Chromium": "^no Chromium",
    "Node": "^no Node|^npm ci failed",
    "Ray": r"^needs ortolan\[ray\]",
    "onnxruntime-genai": "^ORTOLAN_GENAI_PYTHON",
    "onnxruntime's header (make onnxruntime-header)": "onnxruntime_c_api",
    "a toolchain": r"^needs (cmake|nm|cc|c\+\+|aarch64-\S+|go|javac?|mcs|mono|\S+jna.jar)(,| |$)",
    "an ARM machine (make test-arm)": "make test-arm|qemu",
    "a program of Linux": "^needs (valgrind|cargo|prlimit|strace|systemd-analyze|make)|^strace may",
    "a kernel that counts peaks of memory": "^this system cannot reset",
    "a clone": "^needs a clone",
    "another user than root": "^root (reads|may)",
    "root": "^only root",
    "PyPI": "^pip cannot download",
    "a tiny model of the type": "^no tiny model",
    "Python 3.11": "^other standard libraries",
    "the onnxruntime that tables are of": "^the table is of|^the registry of the GPU package",
}
"""What a skipped test needs, by the reason that it states."""


def need_of(reason: str) -> str | None:
    """What a test needs that was skipped for a reason; None for a reason that is not allowed."""
    return next((need for need, known in ALLOWED.items() if re.search(known, reason)), None)


def _reasons(config: pytest.Config) -> list[str]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter else []
    return [report.longrepr[2].removeprefix("Skipped: ") for report in reports]


def _not_allowed(config: pytest.Config) -> set[str]:
    return {reason for reason in _reasons(config) if need_of(reason) is None}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that skips for other reasons."""
    if os.environ.get(VARIABLE) == "listed" and _not_allowed(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(config: pytest.Config) -> None:
    """Count the skipped tests by what they need, in one line."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    counts = Counter(need_of(reason) for reason in _reasons(config))
    if reporter is None or os.environ.get(VARIABLE) != "listed" or not counts:
        return
    allowed = ", ".join(f"{count} for {need}" for need, count in counts.items() if need)
    reporter.write_line(f"skipped, since this machine lacks it: {allowed or 'nothing'}")
    for reason in sorted(_not_allowed(config)):
        reporter.write_line(f"skipped, but not allowed in tests/skips.py: {reason}", red=True)
