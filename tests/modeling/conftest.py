from collections.abc import Iterator

import pytest
import torch
from tests.modeling.extra_families import EXTRA_FAMILIES

from ortolan.modeling.families import FAMILIES


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny models are slower on more than one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def extra_families(monkeypatch: pytest.MonkeyPatch) -> None:
    """The families of `extra_families.py`, registered for one test."""
    for model_type, family in EXTRA_FAMILIES.items():
        monkeypatch.setitem(FAMILIES, model_type, family)
