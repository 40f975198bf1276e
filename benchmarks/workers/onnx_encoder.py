"""Worker for an exported encoder with plain onnxruntime."""

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped]
from numpy.typing import NDArray

from workers.protocol import Engine, Start, serve

BATCH = 32


def load(start: Start) -> Engine:
    """Load model.onnx of a folder."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = start.threads
    session = ort.InferenceSession(
        str(start.model / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )

    def encode(texts: list[list[int]]) -> NDArray[np.float32]:
        ids = np.array(texts, np.int64)
        parts = [ids[start : start + BATCH] for start in range(0, len(ids), BATCH)]
        feeds = [{"input_ids": part, "attention_mask": np.ones_like(part)} for part in parts]
        return np.concatenate([session.run(None, feed)[0] for feed in feeds])

    return Engine(encode=encode)


if __name__ == "__main__":
    serve(load)
