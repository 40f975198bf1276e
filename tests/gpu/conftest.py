"""Tests for machines with an NVIDIA GPU; elsewhere each is skipped with what is missing."""

import pytest

from ortolan.cuda_setup import missing_part


@pytest.fixture(scope="session", autouse=True)
def complete_setup() -> None:
    part = missing_part()
    if part is not None:
        pytest.skip(f"no {part.name}. {part.remedy}")
