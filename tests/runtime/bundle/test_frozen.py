"""Bundles of schema 1 as they were once written: they stay readable.

Random weights. Those of `ctc`, `sounds` and `translator` start at multiples of 64 bytes instead of
pages, which keeps them small.
"""

from pathlib import Path

import pytest

from ortolan.runtime import load, verify

FROZEN = Path(__file__).parents[2] / "data" / "bundles"


@pytest.mark.parametrize("name", sorted(path.name for path in FROZEN.iterdir()))
def test_a_frozen_bundle_loads_and_passes(name: str) -> None:
    load(FROZEN / name, isolate=False)
    assert verify(FROZEN / name, threads=1, isolate=False).verdict == "PASS"
