"""Worker for llama.cpp, through the C interface of llama-cpp-python.

Like programs on llama.cpp, it keeps a context (cache and buffers) between requests, and creates a
new one when a request needs a larger one. The cache holds float16, llama.cpp's default.
"""

import ctypes
import time
from typing import Any

import llama_cpp as lib
import numpy as np
from numpy.typing import NDArray

from workers.protocol import Engine, Generated, Start, serve

BATCH = 512  # prompt tokens per call, the default of llama.cpp's programs


class Context:
    """A model, and a context with one growing sequence, or with `slots` of them."""

    def __init__(self, start: Start, slots: int = 1) -> None:
        path = str(start.model / "model.gguf").encode()
        model = lib.llama_model_load_from_file(path, lib.llama_model_default_params())
        if not model:
            raise RuntimeError(f"{start.model}: cannot load the model. See the log above.")
        self._model = model
        self._threads, self._slots = start.threads, slots
        self._size = 0
        self.context: Any = None
        self.vocab_size: int = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))

    def clear(self, size: int) -> None:
        """Start over with sequences of at most `size` tokens."""
        if size <= self._size:
            lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
            return
        if self.context is not None:
            lib.llama_free(self.context)
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = size * self._slots, self._slots
        params.n_batch = params.n_outputs_max = BATCH
        params.n_threads = params.n_threads_batch = self._threads
        self.context = lib.llama_init_from_model(self._model, params)
        self._size = size

    def append(self, ids: list[int], *, all_rows: bool) -> NDArray[np.float32]:
        """Compute at most `BATCH` tokens; return the logits of all of them, or of the last."""
        tokens = (lib.llama_token * len(ids))(*ids)
        batch = lib.llama_batch_get_one(tokens, len(ids))
        if all_rows:
            flags = (ctypes.c_int8 * len(ids))(*[1] * len(ids))
            batch.logits = flags
        status = lib.llama_decode(self.context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode failed with status {status}.")
        rows = len(ids) if all_rows else 1
        logits = lib.llama_get_logits(self.context)
        return np.ctypeslib.as_array(logits, (rows, self.vocab_size))

    def next(self, ids: list[int]) -> int:
        """Compute tokens; return the likeliest next one."""
        for start in range(0, len(ids), BATCH):
            logits = self.append(ids[start : start + BATCH], all_rows=False)
        return int(logits[-1].argmax())


def load(start: Start) -> Engine:
    """Load the file in a folder written by to_gguf.py."""
    context = Context(start)

    def generate(prompt: list[int], new_tokens: int) -> Generated:
        begun = time.perf_counter()
        context.clear(len(prompt) + new_tokens)
        tokens = [context.next(prompt)]
        first = time.perf_counter()
        for _ in range(new_tokens - 1):
            tokens.append(context.next(tokens[-1:]))
        end = time.perf_counter()
        return Generated(tokens=tokens, prefill_s=first - begun, decode_s=end - first)

    def logits(ids: list[int]) -> NDArray[np.float32]:
        context.clear(len(ids))
        pieces = [ids[start : start + BATCH] for start in range(0, len(ids), BATCH)]
        # Copied because the next call overwrites them.
        return np.concatenate([context.append(piece, all_rows=True).copy() for piece in pieces])

    return Engine(generate=generate, logits=logits)


if __name__ == "__main__":
    serve(load)
