"""Training of models of transformers from random weights, as `shapes` and `spoken` need it."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from ortolan.modeling.checkpoint.json_file import write_json
from ortolan.modeling.training.recipe import OptimizerRecipe
from ortolan.modeling.training.trainer import learning_rate

LAST = 100
"""Steps whose mean loss is reported."""


def fit(
    model: nn.Module,
    recipe: OptimizerRecipe,
    losses: Callable[[], Sequence[torch.Tensor]],
    *,
    more: Sequence[nn.Parameter] = (),
) -> dict[str, object]:
    """Minimise the sum of the losses that each step computes; return figures for training.json.

    Only the rates, the sizes and the steps of the recipe count; the schedule is a cosine.
    """
    began, history = time.monotonic(), list[list[float]]()
    parameters = [*model.parameters(), *more]
    betas, decay = (recipe.beta1, recipe.beta2), recipe.weight_decay
    optimizer = torch.optim.AdamW(parameters, betas=betas, weight_decay=decay)
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step)
        parts = losses()
        loss: Any = torch.stack(list(parts)).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, recipe.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        history.append([part.item() for part in parts])
        if step % LAST == LAST - 1:
            means, spent = np.mean(history[-LAST:], 0).round(4), time.monotonic() - began
            print(f"step {step + 1}: losses {means}, {spent:.0f} s", flush=True)
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "training_seconds": round(time.monotonic() - began),
        "examples": recipe.steps * recipe.batch_size,
        "train_loss": round(float(np.mean(history[-LAST:], 0)[0]), 4),
    }


def write(out: Path, model: Any, tokenizer: Tokenizer, files: dict[str, object]) -> None:
    """Write a checkpoint as transformers reads it, with further JSON files by their names."""
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save(str(out / "tokenizer.json"))
    for name, values in files.items():
        write_json(out / f"{name}.json", values)
