"""Worker for ExecuTorch, through its Python runtime.

The program of a Llama returns logits for the last token of a call, and keeps its own cache.
"""

import time
from pathlib import Path

import numpy as np
import torch
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401 -- registers its kernels
from executorch.extension.pybindings import portable_lib
from executorch.kernels import quantized  # noqa: F401 -- registers its kernels
from executorch.runtime import Runtime
from numpy.typing import NDArray

from workers.protocol import Engine, Generated, Start, serve


def load(start: Start) -> Engine:
    """Load the file in a folder written by to_executorch.py."""
    portable_lib._unsafe_reset_threadpool(start.threads)
    program = Runtime.get().load_program(Path(start.model / "model.pte"))
    forward = program.load_method("forward")

    def last_row(ids: list[int], position: int) -> NDArray[np.float32]:
        (row,) = forward.execute((torch.tensor([ids]), torch.tensor([position])))
        values: NDArray[np.float32] = row.numpy().reshape(-1)
        return values

    def generate(prompt: list[int], new_tokens: int) -> Generated:
        begun = time.perf_counter()
        tokens = [int(last_row(prompt, 0).argmax())]
        first = time.perf_counter()
        for position in range(len(prompt), len(prompt) + new_tokens - 1):
            tokens.append(int(last_row(tokens[-1:], position).argmax()))
        end = time.perf_counter()
        return Generated(tokens=tokens, prefill_s=first - begun, decode_s=end - first)

    def logits(ids: list[int]) -> NDArray[np.float32]:
        return np.stack([last_row([token], place).copy() for place, token in enumerate(ids)])

    return Engine(generate=generate, logits=logits)


if __name__ == "__main__":
    serve(load)
