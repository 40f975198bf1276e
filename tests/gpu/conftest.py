"""Tests of onnxruntime's kernels on a GPU; the same tests run on the CPU everywhere.

Those that need an NVIDIA GPU are marked `gpu`. Without one they are skipped, with the missing part.
"""

import pytest
from tests.gpu.one_node import Place

from ortolan.cuda_setup import missing_part


@pytest.fixture(scope="session")
def cuda() -> None:
    """Skip a test without everything that CUDA needs."""
    part = missing_part()
    if part is not None:
        pytest.skip(f"no {part.name}. {part.remedy}")


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    """A device and a type, from `tests.gpu.one_node.places`."""
    place: Place = request.param
    if place.device == "cuda":
        request.getfixturevalue("cuda")
    return place
