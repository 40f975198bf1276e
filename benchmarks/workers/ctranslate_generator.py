"""Worker for CTranslate2 with a converted decoder."""

import json
import time

import ctranslate2  # type: ignore[import-not-found]
import numpy as np
from numpy.typing import NDArray

from workers.protocol import Engine, Generated, Start, serve


def load(start: Start) -> Engine:
    """Load a converted model; `compute_type` is a worker option."""
    generator = ctranslate2.Generator(
        str(start.model),
        device="cpu",
        compute_type=start.options["compute_type"],
        inter_threads=1,
        intra_threads=start.threads,
    )
    words: list[str] = json.loads((start.model / "vocabulary.json").read_text(encoding="utf-8"))

    def generate(prompt: list[int], new_tokens: int) -> Generated:
        tokens: list[int] = []
        begun = first = time.perf_counter()
        for step in generator.generate_tokens(
            [words[token] for token in prompt],
            max_length=new_tokens,
            min_length=new_tokens,
            sampling_topk=1,
        ):
            if not tokens:
                first = time.perf_counter()
            tokens.append(step.token_id)
        return Generated(
            tokens=tokens, prefill_s=first - begun, decode_s=time.perf_counter() - first
        )

    def logits(ids: list[int]) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = np.array(generator.forward_batch([ids]))[0]
        return rows

    return Engine(generate=generate, logits=logits)


if __name__ == "__main__":
    serve(load)
