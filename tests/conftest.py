"""What every test needs: no telemetry, no network, and less waiting."""

import gc
import os
import sys

import pytest

# Some tests import onnxruntime before the runtime, which would warn that it came too late.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_collection_finish() -> None:
    """Leave what is imported by now, some millions of objects, out of later collections."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is kept for the user stays out of the user's folders."""
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        os.environ[name] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def quick_exports(tmp_path_factory: pytest.TempPathFactory) -> None:
    """See `tests.quick_exports`."""
    from tests import quick_exports  # imports PyTorch

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of the run; each worker has its own in it
    quick_exports.install(folder / "traces")


@pytest.fixture(scope="session", autouse=True)
def _quick_exports(request: pytest.FixtureRequest) -> None:
    """Unless no test here can export."""
    if "torch" in sys.modules:
        request.getfixturevalue("quick_exports")
