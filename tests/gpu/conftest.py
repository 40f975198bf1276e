"""Tests that decide on a GPU what was assumed; on the CPU they show that they can pass.

What needs an NVIDIA GPU is marked `gpu`, and skipped with what is missing.
"""

import pytest
from tests.gpu.one_node import Place

from ortolan.cuda_setup import missing_part


@pytest.fixture(scope="session")
def cuda() -> None:
    """Everything that CUDA needs, or a test is skipped."""
    part = missing_part()
    if part is not None:
        pytest.skip(f"no {part.name}. {part.remedy}")


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    """One of `tests.gpu.one_node.everywhere`."""
    given: Place = request.param
    if given.device == "cuda":
        request.getfixturevalue("cuda")
    return given
