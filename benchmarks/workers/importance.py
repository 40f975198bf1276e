"""Mean squares of the inputs of every matrix of a Llama: llama.cpp's importance matrix.

Computed in PyTorch, since llama.cpp's own program for it is in no Python package.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from workers.llama_weights import Array, gguf_name

WINDOW = 512  # tokens, the default of llama-imatrix
WINDOWS = 16


def importance(checkpoint: Path, texts: Sequence[Path]) -> dict[str, Array]:
    """Mean squares by the names of GGUF, `(columns,)` each.

    Args:
        checkpoint: folder of a Llama.
        texts: UTF-8 files; windows of them are spread evenly.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint)
    text = "".join(path.read_text(encoding="utf-8") for path in texts)
    ids = torch.tensor(tokenizer.encode(text, add_special_tokens=False))
    squares: dict[str, Array] = {}

    def add(name: str, inputs: torch.Tensor) -> None:
        mean = inputs[0].square().mean(dim=0).numpy() / WINDOWS
        squares[name] = np.add(squares.get(name, 0), mean, dtype=np.float32)

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            tied = name == "lm_head" and model.config.tie_word_embeddings
            stored = f"{'model.embed_tokens' if tied else name}.weight"
            known = gguf_name(stored, model.config.num_hidden_layers)
            module.register_forward_pre_hook(lambda _, args, known=known: add(known, args[0]))
    with torch.inference_mode():
        for start in np.linspace(0, len(ids) - WINDOW, WINDOWS, dtype=int):
            model(ids[None, start : start + WINDOW])
    return squares
