"""A tiny Llama in every format in which weights are published, and damages of checkpoints."""

import json
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file, save_file
from tests.modeling.tiny_models import LLAMA, reference_model
from tests.refusals import refusal
from torch import Tensor

from ortolan.modeling import TransformerModel, load
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.checkpoint.shards import INDEX, PICKLE, SAFETENSORS

Tensors = dict[str, Tensor]

Writer = Callable[[Path, Tensors], object]

OLD, NEW = "1" * 40, "2" * 40
"""Revisions in the cache of the hub."""


class Code:
    """Runs code when a pickle is loaded."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.system, ("exit 1",)


@cache
def saved_llama() -> tuple[Tensors, str]:
    """Tensors and config.json of a tiny Llama, as transformers saves them."""
    with TemporaryDirectory() as folder:
        reference_model(LLAMA).save_pretrained(folder)
        config = Path(folder, "config.json").read_text()
        return load_file(Path(folder, SAFETENSORS)), config


def as_file(folder: Path, tensors: Tensors) -> None:
    save_file(tensors, folder / SAFETENSORS, metadata={"format": "pt"})


def as_pickle(folder: Path, tensors: Tensors) -> None:
    torch.save(tensors, folder / PICKLE)


def as_shards(folder: Path, tensors: Tensors) -> None:
    _write_shards(folder, tensors, SAFETENSORS, lambda part, file: save_file(part, file))


def as_pickles(folder: Path, tensors: Tensors) -> None:
    _write_shards(folder, tensors, PICKLE, torch.save)


def _write_shards(
    folder: Path, tensors: Tensors, name: str, write: Callable[[Tensors, Path], None]
) -> None:
    stem, suffix = name.split(".")
    files = [f"{stem}-0000{number}-of-00002.{suffix}" for number in (1, 2)]
    names = sorted(tensors)
    for number, file in enumerate(files):
        write({name: tensors[name] for name in names[number::2]}, folder / file)
    places = {tensor: files[number % 2] for number, tensor in enumerate(names)}
    index = {"metadata": {}, "weight_map": places}
    (folder / f"{name}{INDEX}").write_text(json.dumps(index))


def in_cache(folder: Path, tensors: Tensors) -> None:
    """The layout of huggingface_hub: links to blobs, and a reference to the newer revision."""
    config = (folder / "config.json").read_text()
    (folder / "config.json").unlink()
    for revision, factor in ((OLD, 2), (NEW, 1)):
        blobs, snapshot = folder / "blobs" / revision, folder / "snapshots" / revision
        blobs.mkdir(parents=True)
        as_file(blobs, {name: tensor * factor for name, tensor in tensors.items()})
        (blobs / "config.json").write_text(config)
        snapshot.mkdir(parents=True)
        for blob in blobs.iterdir():
            (snapshot / blob.name).symlink_to(blob)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(f"{NEW}\n")


def wrapped(rename: Callable[[str], str], write: Writer = as_file) -> Writer:
    """As saved from inside the wrappers of training, which change the names."""
    return lambda folder, tensors: write(folder, {rename(name): t for name, t in tensors.items()})


def _of_blocks(name: str) -> str:
    inner = "._orig_mod._checkpoint_wrapped_module.self_attn."
    return "_fsdp_wrapped_module." + name.replace(".self_attn.", inner)


FORMATS: dict[str, Writer] = {
    "safetensors": as_file,
    "shards": as_shards,
    "pickle": as_pickle,
    "pickles": as_pickles,
    "cache": in_cache,
    "compiled": wrapped(lambda name: f"_orig_mod.{name}"),
    "data parallel": wrapped(lambda name: f"module.{name}"),
    "peft": wrapped(lambda name: f"base_model.model.{name}"),
    "nested": wrapped(lambda name: f"module._orig_mod.module.base_model.model.{name}", as_pickle),
    "wrapped blocks": wrapped(_of_blocks, as_shards),
}


def write_format(name: str, folder: Path) -> Path:
    """Write the tiny Llama in a format."""
    tensors, config = saved_llama()
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(config)
    FORMATS[name](folder, tensors)
    return folder


# --- damaged checkpoints, and the errors for them -----------------------------------------------


def edit(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Change the tensors of a checkpoint."""
    tensors = load_file(folder / SAFETENSORS)
    change(tensors)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, folder / SAFETENSORS, metadata={"format": "pt"})


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
