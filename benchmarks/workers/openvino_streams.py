"""Worker for OpenVINO GenAI's continuous batching; options are for its CPU plugin."""

import numpy as np
import openvino as ov
import openvino_genai as ov_genai

from workers.protocol import Engine, Start, serve


def load(start: Start) -> Engine:
    """Load a folder written by optimum-cli."""
    options = dict(start.options)
    scheduler = ov_genai.SchedulerConfig()
    scheduler.max_num_seqs = int(options.pop("slots"))
    # Every round repeats its prompts, which the prefix cache would skip.
    scheduler.enable_prefix_caching = False
    properties = {"INFERENCE_NUM_THREADS": start.threads, **options}
    pipeline = ov_genai.ContinuousBatchingPipeline(str(start.model), scheduler, "CPU", properties)

    def together(prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        config = ov_genai.GenerationConfig()
        config.do_sample = False
        config.ignore_eos = True
        config.max_new_tokens = new_tokens
        inputs = [ov.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        done = pipeline.generate(inputs, [config] * len(prompts))
        return [[int(token) for token in result.m_generation_ids[0]] for result in done]

    return Engine(together=together)


if __name__ == "__main__":
    serve(load)
