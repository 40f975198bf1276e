"""Damaged checkpoints and the errors for them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ortolan.modeling import CheckpointError, TransformerModel, WeightError, load
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint

WEIGHTS = "model.safetensors"


def edit(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Change the tensors of a checkpoint."""
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def reshape(folder: Path, shapes: Mapping[str, tuple[int, ...] | None]) -> None:
    """Replace tensors of a checkpoint by zeros of these shapes; None removes one."""

    def change(tensors: dict[str, Tensor]) -> None:
        for name, shape in shapes.items():
            if shape is None:
                del tensors[name]
            else:
                tensors[name] = torch.zeros(shape)

    edit(folder, change)


def reconfigure(folder: Path, **changes: object) -> None:
    """Change values of config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def refused(source: Path, adapter: Path | None = None) -> str:
    """The one-line message of the CheckpointError for a checkpoint."""
    with pytest.raises(CheckpointError) as caught:
        load(open_checkpoint(source, adapter=adapter))
    message = str(caught.value)
    assert "\n" not in message
    return message


def weight_error(folder: Path) -> str:
    """The message of the WeightError for a checkpoint."""
    with pytest.raises(WeightError) as caught:
        load(folder, TransformerModel)
    return str(caught.value)
