"""What every test needs: no telemetry, no network, and less waiting."""

import contextlib
import functools
import gc
import importlib
import os
import sys

# Some tests import onnxruntime before the runtime, which would warn that it came too late.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_collection_finish() -> None:
    """Make traces faster, of which there are more than a hundred, now that all is imported."""
    # What the libraries made lives to the end: no collection has to look at it again.
    gc.freeze()
    if "torch" in sys.modules:
        _parse_torchlib_once()


def _parse_torchlib_once() -> None:
    """Keep what `torch.onnx.export` otherwise reads from 500 functions' sources at each call."""
    # another version of PyTorch may have it elsewhere: then tests are slower, and not wrong
    with contextlib.suppress(ImportError, AttributeError):
        registration = importlib.import_module("torch.onnx._internal.exporter._registration")
        library = registration.onnxscript_apis
        library.get_torchlib_ops = functools.cache(library.get_torchlib_ops)
