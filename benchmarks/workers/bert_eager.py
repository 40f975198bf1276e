"""Worker for an encoder with transformers on PyTorch, eager and in float32."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel

from workers.protocol import Engine, Start, serve

BATCH = 32


def load(start: Start) -> Engine:
    """Load a checkpoint folder."""
    torch.set_num_threads(start.threads)
    model: Any = AutoModel.from_pretrained(
        start.model, dtype=torch.float32, add_pooling_layer=False
    )

    @torch.inference_mode()
    def encode(texts: list[list[int]]) -> NDArray[np.float32]:
        parts = torch.split(torch.tensor(texts), BATCH)
        states: NDArray[np.float32] = torch.cat(
            [model(part, attention_mask=torch.ones_like(part))[0] for part in parts]
        ).numpy()
        return states

    return Engine(encode=encode)


if __name__ == "__main__":
    serve(load)
