"""What every test needs: no telemetry, no network, and less waiting."""

import gc
import os
import sys

# Some tests import onnxruntime before the runtime, which would warn that it came too late.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_collection_finish() -> None:
    """Make exports quick, unless no test here can export."""
    if "torch" in sys.modules:
        from tests import quick_exports

        quick_exports.install()
    # Millions of objects of the packages that are imported by now: none of them is garbage.
    gc.collect()
    gc.freeze()
