"""Worker for an encoder's bundle, through Ortolan's public interface only."""

import numpy as np
from numpy.typing import NDArray

import ortolan
from ortolan.runtime import Encoder
from workers.protocol import Engine, Start, serve


def load(start: Start) -> Engine:
    """Load a bundle for the CPU."""
    model = ortolan.load(start.model, Encoder, device="cpu", threads=start.threads)

    output = model.manifest.output

    def encode(texts: list[list[int]]) -> NDArray[np.float32]:
        if output is not None and output.kind == "embedding":
            return model.embed(texts)[:, None]  # one vector in place of all tokens
        return np.stack(model.states(texts))

    return Engine(encode=encode)


if __name__ == "__main__":
    serve(load)
