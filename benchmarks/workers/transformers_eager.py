"""Worker for transformers on PyTorch, eager and in float32."""

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, GenerationConfig

from workers.protocol import Engine, Generated, Start, serve


class Clock:
    """A streamer that records when pieces arrive: the prompt, then token by token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        """Record the time."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Do nothing: the last token is already recorded."""


def load(start: Start) -> Engine:
    """Load a checkpoint folder."""
    torch.set_num_threads(start.threads)
    model: Any = AutoModelForCausalLM.from_pretrained(start.model, dtype=torch.float32)
    # Without EOS nothing stops a measurement, and no logit is masked.
    model.generation_config = GenerationConfig(do_sample=False)  # type: ignore[no-untyped-call]

    def generate(prompt: list[int], new_tokens: int) -> Generated:
        ids = torch.tensor([prompt])
        clock = Clock()
        begun = time.perf_counter()
        tokens = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, streamer=clock
        )
        end = time.perf_counter()
        first = clock.times[1]
        return Generated(
            tokens=tokens[0, len(prompt) :].tolist(),
            prefill_s=first - begun,
            decode_s=end - first,
        )

    @torch.inference_mode()
    def logits(ids: list[int]) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = model(torch.tensor([ids])).logits[0].numpy()
        return rows

    return Engine(generate=generate, logits=logits)


if __name__ == "__main__":
    serve(load)
