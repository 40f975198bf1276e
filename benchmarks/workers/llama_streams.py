"""The worker that runs several sequences in one context of llama.cpp.

Prompts are computed together, at most `BATCH` tokens at once, and then a token of each sequence in
one call, as its own `llama-batched-bench` does. The cache holds float16, llama.cpp's default.
"""

from typing import Any

import llama_cpp as lib
import numpy as np

from workers.llama import BATCH
from workers.protocol import Engine, Start, serve


class Streams:
    """A model, and a context with room for a number of sequences."""

    def __init__(self, start: Start) -> None:
        path = str(start.model / "model.gguf").encode()
        model = lib.llama_model_load_from_file(path, lib.llama_model_default_params())
        if not model:
            raise RuntimeError(f"{start.model}: expected a model, got none. See the log above.")
        self._model, self._threads = model, start.threads
        self._slots = int(start.options["slots"])
        self._size = 0
        self._context: Any = None
        self._batch = lib.llama_batch_init(BATCH, 0, 1)
        self._vocab_size: int = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))

    def clear(self, size: int) -> None:
        """Begin anew, with sequences of at most `size` tokens."""
        if size <= self._size:
            lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
            return
        if self._context is not None:
            lib.llama_free(self._context)
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = size * self._slots, self._slots
        params.n_batch = params.n_outputs_max = BATCH
        params.n_threads = params.n_threads_batch = self._threads
        self._context = lib.llama_init_from_model(self._model, params)
        self._size = size

    def compute(self, tokens: list[tuple[int, int, int, bool]]) -> list[int]:
        """Append tokens; the likeliest after each that asks for it.

        Args:
            tokens: ids, with their place, their sequence, and whether they ask.
        """
        found = []
        for start in range(0, len(tokens), BATCH):
            part, batch = tokens[start : start + BATCH], self._batch
            batch.n_tokens = len(part)
            for index, (token, place, sequence, asks) in enumerate(part):
                batch.token[index], batch.pos[index] = token, place
                batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
                batch.logits[index] = asks
            status = lib.llama_decode(self._context, batch)
            if status != 0:
                raise RuntimeError(f"llama_decode: expected status 0, got {status}.")
            for index, (*_, asks) in enumerate(part):
                if asks:
                    logits = lib.llama_get_logits_ith(self._context, index)
                    row = np.ctypeslib.as_array(logits, (self._vocab_size,))
                    found.append(int(row.argmax()))
        return found


def load(start: Start) -> Engine:
    """Load the file in a folder that to_gguf.py wrote."""
    streams = Streams(start)

    def together(prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        streams.clear(max(map(len, prompts)) + new_tokens)
        new = streams.compute(
            [
                (token, place, number, place == len(prompt) - 1)
                for number, prompt in enumerate(prompts)
                for place, token in enumerate(prompt)
            ]
        )
        found = [[token] for token in new]
        for step in range(new_tokens - 1):
            new = streams.compute(
                [
                    (token, len(prompts[number]) + step, number, True)
                    for number, token in enumerate(new)
                ]
            )
            for tokens, token in zip(found, new, strict=True):
                tokens.append(token)
        return found

    return Engine(together=together)


if __name__ == "__main__":
    serve(load)
