"""Damaged checkpoints and the errors for them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tests.refusals import refusal
from torch import Tensor

from ortolan.modeling import TransformerModel, load
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
    """The one-line error of a checkpoint, without the path of the test's folder."""
    folder = source if source.is_dir() and adapter is None else source.parent
    message = refusal(
        lambda: load(open_checkpoint(source, adapter=adapter), TransformerModel), folder
    )
    assert "\n" not in message
    return message
