"""Common setup: no telemetry, no network, and less waiting."""

import gc
import os
import sys

import pytest

# Some tests import onnxruntime before the runtime, which would warn.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"


COLLECT_AFTER = 50_000
"""New objects that start a garbage collection. The default, 700, costs tests several percent."""


def pytest_collection() -> None:
    """Import without garbage collection: modules stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude the millions of objects imported so far from garbage collection."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep tests out of the user's state folder and cache."""
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        os.environ[name] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def quick_exports(tmp_path_factory: pytest.TempPathFactory) -> None:
    """See `tests.quick_exports`. Tests that export are skipped without PyTorch."""
    pytest.importorskip("torch")
    from tests import quick_exports

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # shared by all workers of the run
    quick_exports.install(folder / "traces")


@pytest.fixture(scope="session", autouse=True)
def _quick_exports(request: pytest.FixtureRequest) -> None:
    """Make exports quick if any test can export."""
    if "torch" in sys.modules:
        request.getfixturevalue("quick_exports")
