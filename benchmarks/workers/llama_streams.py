"""Worker for several sequences in one context of llama.cpp.

Prompts are computed together, at most `BATCH` tokens per call, then one token of each sequence per
call, like `llama-batched-bench`. The cache holds float16, llama.cpp's default.
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
            raise RuntimeError(f"{start.model}: cannot load the model. See the log above.")
        self._model, self._threads = model, start.threads
        self._slots = int(start.options["slots"])
        self._size = 0
        self._context: Any = None
        self._batch = lib.llama_batch_init(BATCH, 0, 1)
        self._vocab_size: int = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))

    def clear(self, size: int) -> None:
        """Start over with sequences of at most `size` tokens."""
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
        """Append tokens; return the likeliest next token after those that need logits.

        Args:
            tokens: id, position, sequence number, and whether logits are needed.
        """
        likeliest = []
        for start in range(0, len(tokens), BATCH):
            part, batch = tokens[start : start + BATCH], self._batch
            batch.n_tokens = len(part)
            for index, (token, position, sequence, needs_logits) in enumerate(part):
                batch.token[index], batch.pos[index] = token, position
                batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
                batch.logits[index] = needs_logits
            status = lib.llama_decode(self._context, batch)
            if status != 0:
                raise RuntimeError(f"llama_decode failed with status {status}.")
            for index, (*_, needs_logits) in enumerate(part):
                if needs_logits:
                    logits = lib.llama_get_logits_ith(self._context, index)
                    row = np.ctypeslib.as_array(logits, (self._vocab_size,))
                    likeliest.append(int(row.argmax()))
        return likeliest


def load(start: Start) -> Engine:
    """Load the file in a folder written by to_gguf.py."""
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
        outputs = [[token] for token in new]
        for step in range(new_tokens - 1):
            new = streams.compute(
                [
                    (token, len(prompts[number]) + step, number, True)
                    for number, token in enumerate(new)
                ]
            )
            for tokens, token in zip(outputs, new, strict=True):
                tokens.append(token)
        return outputs

    return Engine(together=together)


if __name__ == "__main__":
    serve(load)
