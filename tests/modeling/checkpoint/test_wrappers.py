"""Checkpoints and adapters saved from inside the wrappers of training."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.modeling.checkpoint.refusals import refused
from tests.modeling.tiny_models import LLAMA, random_text, reference_logits, reference_model
from torch import Tensor

from ortolan.modeling import load
from ortolan.modeling.checkpoint.shards import INDEX, PICKLE, SAFETENSORS
from ortolan.modeling.checkpoint.wrappers import unwrapped

NAMES: dict[str, Callable[[str], str]] = {
    "compiled": lambda name: f"_orig_mod.{name}",
    "data parallel": lambda name: f"module.{name}",
    "peft": lambda name: f"base_model.model.{name}",
    "nested": lambda name: f"module._orig_mod.module.base_model.model.{name}",
    "blocks": lambda name: (
        "_fsdp_wrapped_module."
        + name.replace(".self_attn.", "._orig_mod._checkpoint_wrapped_module.self_attn.")
    ),
}


def as_file(tensors: dict[str, Tensor], folder: Path) -> None:
    save_file(tensors, folder / SAFETENSORS, metadata={"format": "pt"})


def as_pickle(tensors: dict[str, Tensor], folder: Path) -> None:
    torch.save(tensors, folder / PICKLE)


def as_shards(tensors: dict[str, Tensor], folder: Path) -> None:
    """Names without the prefix in the index, as some scripts write it."""
    files = [f"model-{number}-of-2.safetensors" for number in (1, 2)]
    for number, file in enumerate(files):
        save_file(dict(list(tensors.items())[number::2]), folder / file)
    places = {name: files[i % 2] for i, name in enumerate(tensors)}
    (folder / f"{SAFETENSORS}{INDEX}").write_text(json.dumps({"weight_map": places}))


@pytest.mark.parametrize(
    ("wrapper", "write"),
    [*((name, as_file) for name in NAMES), ("nested", as_pickle), ("blocks", as_shards)],
)
def test_prefixes_of_wrappers_are_removed(
    wrapper: str, write: Callable[[dict[str, Tensor], Path], None], tmp_path: Path
) -> None:
    reference = reference_model(LLAMA)
    reference.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / SAFETENSORS)
    (tmp_path / SAFETENSORS).unlink()
    write({NAMES[wrapper](name): tensor for name, tensor in tensors.items()}, tmp_path)
    ids = random_text(9)
    with torch.inference_mode():
        torch.testing.assert_close(load(tmp_path)(ids), reference_logits(reference, ids))


def test_a_prefix_that_not_all_tensors_have_is_kept() -> None:
    tensors = {"module.weight": 1, "other.weight": 2, "a.module.weight": 3, "b._orig_mod": 4}
    assert unwrapped(tensors) == tensors
    assert unwrapped({}) == {}


COLLIDING: Mapping[str, Tensor] = {
    name: torch.zeros(1) for name in ("model.norm.weight", "_orig_mod.model.norm.weight")
}


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    reference_model(LLAMA).save_pretrained(tmp_path)
    save_file(dict(COLLIDING), tmp_path / SAFETENSORS)
    assert "both name model.norm.weight" in refused(tmp_path)
