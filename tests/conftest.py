"""What every test needs: no telemetry, no network, and less waiting."""

import contextlib
import functools
import importlib
import os
import sys

# Some tests import onnxruntime before the runtime, which would warn that it came too late.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_collection_finish() -> None:
    """Make traces faster, of which there are more than a hundred."""
    if "torch" not in sys.modules:
        return
    # `torch.onnx.export` reads the sources of some 500 functions at each call. Another version may
    # have them elsewhere: then tests are slower, and not wrong.
    with contextlib.suppress(ImportError, AttributeError):
        registration = importlib.import_module("torch.onnx._internal.exporter._registration")
        library = registration.onnxscript_apis
        library.get_torchlib_ops = functools.cache(library.get_torchlib_ops)
