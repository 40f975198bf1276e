"""Checkpoints whose weights are pickles: read without running code, or refused."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.modeling.checkpoint.refusals import refused
from tests.modeling.tiny_models import LLAMA, reference_model
from tests.tiny.decoders import GPT2
from torch import Tensor

from ortolan.modeling import load
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.checkpoint.pickles import Pickles

PICKLE = "pytorch_model.bin"

INDEX = f"{PICKLE}.index.json"


@pytest.fixture
def tensors(tmp_path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint whose weight files were removed."""
    reference_model(LLAMA).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    return tensors


class Code:
    """Runs code when a pickle is loaded."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.system, ("exit 1",)


def write_shards(folder: Path, tensors: dict[str, Tensor]) -> list[Path]:
    names = sorted(tensors)
    shards = {
        "pytorch_model-00001-of-00002.bin": names[::2],
        "pytorch_model-00002-of-00002.bin": names[1::2],
    }
    for file, part in shards.items():
        torch.save({name: tensors[name] for name in part}, folder / file)
    where = {name: file for file, part in shards.items() for name in part}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return [folder / file for file in shards]


def assert_same_as_safetensors(folder: Path, tensors: dict[str, Tensor]) -> None:
    read = open_checkpoint(folder).tensors
    assert read.shapes() == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        assert torch.equal(read.read(name, 0, tensor.shape[0]), tensor), name


def test_a_pickle_equals_safetensors(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    torch.save(tensors, tmp_path / PICKLE)
    assert_same_as_safetensors(tmp_path, tensors)
    assert load(tmp_path).config.model_type == "llama"


def test_sharded_pickles_equal_safetensors(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    shards = write_shards(tmp_path, tensors)
    assert_same_as_safetensors(tmp_path, tensors)
    assert open_checkpoint(tmp_path).tensors.files() == shards


def test_safetensors_are_preferred_to_a_pickle(tmp_path: Path) -> None:
    reference_model(GPT2).save_pretrained(tmp_path)
    torch.save({"a": Code()}, tmp_path / PICKLE)
    assert load(tmp_path).config.model_type == "gpt2"


def test_views_parameters_and_dtypes_are_read_unchanged(tmp_path: Path) -> None:
    base = torch.arange(60.0).view(6, 10)
    tensors = {
        "transposed": base.T,
        "cut": base[1:4, 2:7],
        "whole": base,
        "parameter": torch.nn.Parameter(torch.randn(3, 4)),
        "bf16": torch.randn(5, 3).bfloat16(),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(2.5)[None],
    }
    torch.save(tensors, tmp_path / PICKLE)
    read = Pickles([tmp_path / PICKLE])
    for name, tensor in tensors.items():
        rows = read.read(name, 0, tensor.shape[0])
        assert rows.dtype == tensor.dtype
        assert torch.equal(rows, tensor), name
    assert torch.equal(read.read("cut", 1, 3), base[2:4, 2:7])
    assert torch.equal(read.read("transposed", 2, 5, axis=1), base.T[:, 2:5])


def test_the_hash_depends_on_the_content(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    torch.save(tensors, tmp_path / PICKLE)
    before = open_checkpoint(tmp_path).sha256()
    tensors["model.norm.weight"] += 1
    torch.save(tensors, tmp_path / PICKLE)
    assert open_checkpoint(tmp_path).sha256() != before


# --- refused ------------------------------------------------------------------------------------


def test_code_in_a_pickle_is_not_run(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    torch.save({**tensors, "a": Code()}, tmp_path / PICKLE)
    message = refused(tmp_path)
    assert PICKLE in message
    assert "would run code, " in message
    assert "system" in message


@pytest.mark.usefixtures("tensors")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.nn.Linear(2, 2), "would run code"),
        ([1, 2], "tensors by name"),
        ({"a": 1}, "tensors by name"),
        ({"model": {"a": torch.ones(2)}}, "tensors by name"),
    ],
)
def test_other_objects_are_refused(tmp_path: Path, content: object, message: str) -> None:
    torch.save(content, tmp_path / PICKLE)
    assert message in refused(tmp_path)


def test_the_old_format_is_refused_with_advice(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    torch.save(tensors, tmp_path / PICKLE, _use_new_zipfile_serialization=False)
    message = refused(tmp_path)
    assert "PyTorch before 1.6" in message
    assert "torch.save(torch.load(FILE, weights_only=True), FILE)" in message


@pytest.mark.parametrize("size", [0, 3, 4, 100, 5000, -1])
def test_a_torn_pickle_is_refused(tmp_path: Path, tensors: dict[str, Tensor], size: int) -> None:
    torch.save(tensors, tmp_path / PICKLE)
    (tmp_path / PICKLE).write_bytes((tmp_path / PICKLE).read_bytes()[:size])
    assert PICKLE in refused(tmp_path)


def test_an_absent_shard_and_an_invalid_index_are_refused(
    tmp_path: Path, tensors: dict[str, Tensor]
) -> None:
    shard = write_shards(tmp_path, tensors)[1]
    shard.unlink()
    assert shard.name in refused(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "../pytorch_model.bin"}}))
    assert ".bin files" in refused(tmp_path)


def test_a_pickle_of_integers_is_refused(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    torch.save(tensors | {name: tensors[name].to(torch.int8)}, tmp_path / PICKLE)
    assert f"{name}: " in (message := refused(tmp_path))
    assert "torch.int8" in message
