"""The worker that runs onnxruntime-genai. Knows its Python interface as of 0.18."""

import json
import time
from pathlib import Path

import numpy as np
import onnxruntime_genai as og

from workers.protocol import Generate, Generated, serve


def load(model: Path, threads: int) -> Generate:
    """Load a folder that its model builder wrote."""
    config = og.Config(str(model))
    # Its own default is half of the cores.
    session = {"intra_op_num_threads": threads}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
    engine = og.Model(config)

    def generate(prompt: list[int], new_tokens: int) -> Generated:
        length = len(prompt) + new_tokens
        start = time.perf_counter()
        params = og.GeneratorParams(engine)
        # A minimum equal to the maximum: the end token cannot cut a measurement short.
        params.set_search_options(do_sample=False, min_length=length, max_length=length)
        generator = og.Generator(engine, params)
        generator.append_tokens(np.array([prompt], np.int32))
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(new_tokens - 1):
            generator.generate_next_token()
        end = time.perf_counter()
        tokens = generator.get_sequence(0)[len(prompt) :]
        return Generated(
            tokens=[int(token) for token in tokens],
            prefill_s=first - start,
            decode_s=end - first,
        )

    return generate


if __name__ == "__main__":
    serve(load)
