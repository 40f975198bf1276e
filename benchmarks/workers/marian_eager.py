"""Worker for a translator with transformers on PyTorch, eager and in float32."""

from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForSeq2SeqLM

from workers.protocol import Engine, Start, serve


def load(start: Start) -> Engine:
    """Load a checkpoint folder."""
    torch.set_num_threads(start.threads)
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(start.model, dtype=torch.float32)
    config = model.config
    tokenizer = Tokenizer.from_file(str(start.model / "tokenizer.json"))
    tokenizer.enable_padding(pad_id=config.pad_token_id)

    def translate(sources: list[str], beams: int, new_tokens: int) -> list[str]:
        encodings = tokenizer.encode_batch_fast(sources)
        ids = torch.tensor([encoding.ids for encoding in encodings])
        mask = torch.tensor([encoding.attention_mask for encoding in encodings])
        done = model.generate(
            ids, attention_mask=mask, num_beams=beams, do_sample=False, max_new_tokens=new_tokens
        )
        return tokenizer.decode_batch(done.tolist())

    return Engine(translate=translate)


if __name__ == "__main__":
    serve(load)
