"""Worker for several sequences in one context of llama.cpp.

Prompts are computed together, at most `BATCH` tokens per call, then one token of each sequence per
call, like `llama-batched-bench`. The cache holds float16, llama.cpp's default.
"""

import llama_cpp as lib
import numpy as np

from workers.llama import BATCH, Context
from workers.protocol import Engine, Start, serve


class Streams(Context):
    """A model, and a context with room for a number of sequences."""

    def __init__(self, start: Start) -> None:
        super().__init__(start, int(start.options["slots"]))
        self._batch = lib.llama_batch_init(BATCH, 0, 1)

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
            status = lib.llama_decode(self.context, batch)
            if status != 0:
                raise RuntimeError(f"llama_decode failed with status {status}.")
            for index, (*_, needs_logits) in enumerate(part):
                if needs_logits:
                    logits = lib.llama_get_logits_ith(self.context, index)
                    row = np.ctypeslib.as_array(logits, (self.vocab_size,))
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
