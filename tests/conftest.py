"""What every test needs: no telemetry, no network."""

import os

# Some tests import onnxruntime before the runtime, which would warn that it came too late.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
