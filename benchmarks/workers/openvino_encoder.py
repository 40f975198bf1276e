"""Worker for an encoder with plain OpenVINO."""

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from workers.protocol import Engine, Start, serve

BATCH = 32


def load(start: Start) -> Engine:
    """Load a folder written by optimum-cli."""
    properties = {"INFERENCE_NUM_THREADS": start.threads, **start.options}
    model = ov.Core().compile_model(str(start.model / "openvino_model.xml"), "CPU", properties)
    segments = any("token_type_ids" in port.get_names() for port in model.inputs)

    def states(ids: NDArray[np.int64]) -> NDArray[np.float32]:
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        if segments:
            feed["token_type_ids"] = np.zeros_like(ids)
        output: NDArray[np.float32] = model(feed)[0]
        return output

    def encode(texts: list[list[int]]) -> NDArray[np.float32]:
        ids = np.array(texts, np.int64)
        return np.concatenate([states(ids[at : at + BATCH]) for at in range(0, len(ids), BATCH)])

    return Engine(encode=encode)


if __name__ == "__main__":
    serve(load)
