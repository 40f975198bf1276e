"""The worker that runs onnxruntime-genai. Knows its Python interface as of 0.18."""

import json
import time

import numpy as np
import onnxruntime_genai as og
from numpy.typing import NDArray

from workers.protocol import Engine, Generated, Start, serve


def load(start: Start) -> Engine:
    """Load a folder that its model builder wrote."""
    config = og.Config(str(start.model))
    # Its own default is half of the cores.
    session = {"intra_op_num_threads": start.threads}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
    engine = og.Model(config)

    def begin(ids: list[int], length: int) -> og.Generator:
        params = og.GeneratorParams(engine)
        # A minimum equal to the maximum: the end token cannot cut a measurement short.
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
        # A pruned model gives the last row alone, and the driver refuses that.
        found: NDArray[np.float32] = begin(ids, len(ids)).get_output("logits")[0]
        return found

    return Engine(generate=generate, logits=logits)


if __name__ == "__main__":
    serve(load)
