"""The table of behaviors names tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
TABLE = TESTS.parents[1] / "benchmarks" / "results" / "server-conformance.md"


def test_every_case_has_a_test() -> None:
    tests = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    named = [name for row in rows for name in re.findall(r"`(test_\w+)`", row.rsplit("|", 2)[1])]
    assert len(named) > 50
    assert [name for name in named if f"def {name}(" not in tests] == []
