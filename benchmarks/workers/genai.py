"""Worker for onnxruntime-genai, version 0.18."""

import json
import time

import numpy as np
import onnxruntime_genai as og
from numpy.typing import NDArray

from workers.protocol import Engine, Generated, Start, serve


def load(start: Start) -> Engine:
    """Load a folder written by its model builder."""
    config = og.Config(str(start.model))
    # Its default is half of the cores.
    session = {"intra_op_num_threads": start.threads}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
    engine = og.Model(config)

    def begin(ids: list[int], length: int) -> og.Generator:
        params = og.GeneratorParams(engine)
        # With equal minimum and maximum, EOS cannot cut a measurement short.
        params.set_search_options(do_sample=False, min_length=length, max_length=length)
        generator = og.Generator(engine, params)
        generator.append_tokens(np.array([ids], np.int32))
        return generator

    def generate(prompt: list[int], new_tokens: int) -> Generated:
        begun = time.perf_counter()
        generator = begin(prompt, len(prompt) + new_tokens)
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(new_tokens - 1):
            generator.generate_next_token()
        end = time.perf_counter()
        tokens = generator.get_sequence(0)[len(prompt) :]
        return Generated(
            tokens=[int(token) for token in tokens],
            prefill_s=first - begun,
            decode_s=end - first,
        )

    def logits(ids: list[int]) -> NDArray[np.float32]:
        # A pruned model returns only the last row, which the driver rejects.
        rows: NDArray[np.float32] = begin(ids, len(ids)).get_output("logits")[0]
        return rows

    return Engine(generate=generate, logits=logits)


if __name__ == "__main__":
    serve(load)
