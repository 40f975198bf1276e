"""Tiny checkpoints with a head that predicts one more token, in the published format."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tests.modeling.tiny_models import reference_model

WEIGHTS = "model.safetensors"


def save_with_head(folder: Path, values: dict[str, Any], *, seed: int = 0) -> None:
    """Save a random model whose last layer serves as the head's; the config counts one less."""
    layers = values["num_hidden_layers"]
    whole = reference_model(values | {"num_hidden_layers": layers + 1}, seed=seed)
    whole.save_pretrained(folder)
    tensors, width = load_file(folder / WEIGHTS), values["hidden_size"]
    generator = torch.Generator().manual_seed(seed)
    own = f"model.layers.{layers}."
    for name in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{own}{name}.weight"] = 1 + 0.3 * torch.randn(width, generator=generator)
    tensors[f"{own}eh_proj.weight"] = 0.3 * torch.randn(width, 2 * width, generator=generator)
    for name, shared in (("embed_tokens", "model.embed_tokens"), ("shared_head.head", "lm_head")):
        tensors[f"{own}{name}.weight"] = tensors[f"{shared}.weight"].clone()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    file = folder / "config.json"
    config = json.loads(file.read_text()) | {"num_hidden_layers": layers}
    file.write_text(json.dumps(config))


def save_with_right_head(folder: Path, values: dict[str, Any]) -> None:
    """Save a model that chooses each token by the last one alone, and a head that knows how.

    Blocks add nothing to the stream, and the head ignores the states.
    """
    save_with_head(folder, values)
    tensors, width = load_file(folder / WEIGHTS), values["hidden_size"]
    own = f"model.layers.{values['num_hidden_layers']}."
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
    tensors[f"{own}enorm.weight"] = torch.ones(width)
    tensors[f"{own}eh_proj.weight"] = torch.eye(width, 2 * width)
    tensors[f"{own}shared_head.norm.weight"] = tensors["model.norm.weight"].clone()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
