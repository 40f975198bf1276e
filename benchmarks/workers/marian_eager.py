"""The worker that runs a translator with transformers on PyTorch, eagerly and in float32."""

from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM

from workers.protocol import Engine, Start, serve


def load(start: Start) -> Engine:
    """Load a checkpoint folder."""
    torch.set_num_threads(start.threads)
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(start.model, dtype=torch.float32)
    config = model.config
    eos = config.eos_token_id
    special = {config.pad_token_id, *(eos if isinstance(eos, list) else [eos])}

    def translate(sources: list[list[int]], beams: int, new_tokens: int) -> list[list[int]]:
        longest = max(map(len, sources))
        ids = torch.full((len(sources), longest), config.pad_token_id)
        mask = torch.zeros_like(ids)
        for row, source in enumerate(sources):
            ids[row, : len(source)] = torch.tensor(source)
            mask[row, : len(source)] = 1
        done = model.generate(
            ids, attention_mask=mask, num_beams=beams, do_sample=False, max_new_tokens=new_tokens
        )
        return [[token for token in row if token not in special] for row in done.tolist()]

    return Engine(translate=translate)


if __name__ == "__main__":
    serve(load)
