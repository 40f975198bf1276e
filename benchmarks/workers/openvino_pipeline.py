"""Worker for OpenVINO GenAI; options are properties of OpenVINO's CPU plugin."""

import time
from functools import cache
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as ov_genai
from numpy.typing import NDArray

from workers.protocol import Engine, Generated, Start, serve


def load(start: Start) -> Engine:
    """Load a folder written by optimum-cli."""
    properties = {"INFERENCE_NUM_THREADS": start.threads, **start.options}
    scheduler = ov_genai.SchedulerConfig()
    # Every round repeats its prompt, which the prefix cache would skip.
    scheduler.enable_prefix_caching = False
    pipeline = ov_genai.LLMPipeline(
        str(start.model), "CPU", scheduler_config=scheduler, **properties
    )

    def generate(prompt: list[int], new_tokens: int) -> Generated:
        config = ov_genai.GenerationConfig()
        config.do_sample = False
        config.ignore_eos = True
        config.max_new_tokens = new_tokens
        ids = np.array([prompt], np.int64)
        inputs = ov_genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
        begun = time.perf_counter()
        done = pipeline.generate(inputs, config)
        total = time.perf_counter() - begun
        first = done.perf_metrics.get_ttft().mean / 1000
        return Generated(
            tokens=[int(token) for token in done.tokens[0]],
            prefill_s=first,
            decode_s=total - first,
        )

    @cache
    def graph() -> Any:
        # The pipeline returns no logits, so compile the same file once more.
        return ov.Core().compile_model(str(start.model / "openvino_model.xml"), "CPU", properties)

    def logits(ids: list[int]) -> NDArray[np.float32]:
        inputs = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, len(ids)), np.int64),
            "position_ids": np.arange(len(ids), dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        # A new request starts with an empty cache.
        rows: NDArray[np.float32] = graph().create_infer_request().infer(inputs)["logits"][0]
        return rows

    return Engine(generate=generate, logits=logits)


if __name__ == "__main__":
    serve(load)
