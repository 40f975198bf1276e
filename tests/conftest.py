"""Common setup: no telemetry, no network, and less waiting."""

import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.skips import pytest_sessionfinish as pytest_sessionfinish
from tests.skips import pytest_terminal_summary as pytest_terminal_summary

if TYPE_CHECKING:
    from tests.cases.run import Runs

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


def _shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run of the tests share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def quick_exports(tmp_path_factory: pytest.TempPathFactory) -> None:
    """See `tests.quick_exports`. Tests that export are skipped without PyTorch."""
    pytest.importorskip("torch")
    from tests import quick_exports

    quick_exports.install(_shared(tmp_path_factory) / "traces")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, quick_exports: None) -> "Runs":
    """Bundles of `tests.cases`."""
    from tests.cases.run import Runs

    return Runs(_shared(tmp_path_factory) / "cases")


@pytest.fixture(scope="session", autouse=True)
def _quick_exports(request: pytest.FixtureRequest) -> None:
    """Make exports quick if any test can export."""
    if "torch" in sys.modules:
        request.getfixturevalue("quick_exports")
