"""Checkpoint folders that are torn, incomplete, hostile, or contradict their config."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.modeling.checkpoint.refusals import refused
from tests.modeling.tiny_models import GPT2, LLAMA, reference_model
from torch import Tensor

from ortolan.modeling import CheckpointError, WeightError, load
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.checkpoint.safetensors import MAX_HEADER_BYTES
from ortolan.modeling.checkpoint.shards import MAX_INDEX_BYTES

Tensors = dict[str, Tensor]

INDEX = "model.safetensors.index.json"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    reference_model(LLAMA).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    reference_model(GPT2).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    reference_model(LLAMA).save_pretrained(tmp_path, max_shard_size="20KB")
    return tmp_path


def edit(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def weight_error(folder: Path) -> str:
    with pytest.raises(WeightError) as caught:
        load(folder)
    return str(caught.value)


# --- weights that contradict the config -----------------------------------------------------------


def test_a_long_list_of_differences_is_cut(llama: Path) -> None:
    def change(tensors: Tensors) -> None:
        for number in range(40):
            tensors[f"other.{number:02}.weight"] = torch.ones(1)

    edit(llama, change)
    message = weight_error(llama)
    assert "40 differences" in message
    assert "other.15.weight; and 24 more" in message
    assert "other.16" not in message


def test_all_differences_are_named_at_once(llama: Path) -> None:
    def change(tensors: Tensors) -> None:
        del tensors["model.layers.0.self_attn.k_proj.weight"]
        del tensors["model.norm.weight"]
        tensors["model.layers.1.self_attn.q_norm.weight"] = torch.ones(8)
        tensors["model.layers.9.mlp.up_proj.weight"] = torch.ones(48, 32)
        tensors["model.layers.0.mlp.down_proj.weight"] = torch.ones(48, 32)

    edit(llama, change)
    message = weight_error(llama)
    assert "5 differences" in message
    for part in (
        "missing model.layers.0.self_attn.k_proj.weight;",
        "missing model.norm.weight;",
        "unexpected model.layers.1.self_attn.q_norm.weight;",
        "unexpected model.layers.9.mlp.up_proj.weight",
        "model.layers.0.mlp.down_proj.weight: expected shape (32, 48), got (48, 32)",
    ):
        assert part in message


def test_biases_that_the_config_lacks_are_unexpected(llama: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.bias"
    edit(llama, lambda tensors: tensors.update({name: torch.ones(32)}))
    assert f"unexpected {name}" in weight_error(llama)


def test_swapped_projections_are_an_error_though_their_sum_fits(llama: Path) -> None:
    attention = "model.layers.0.self_attn"

    def change(tensors: Tensors) -> None:
        q, k = f"{attention}.q_proj.weight", f"{attention}.k_proj.weight"
        tensors[q], tensors[k] = tensors[k], tensors[q]

    edit(llama, change)
    message = weight_error(llama)
    assert f"{attention}.q_proj.weight: expected shape (32, 32), got (16, 32)" in message
    assert f"{attention}.k_proj.weight: expected shape (16, 32), got (32, 32)" in message


@pytest.mark.parametrize("shape", [(), (32,), (32, 96, 1), (96, 32), (0, 96), (32, 95)])
def test_a_transposed_weight_of_a_wrong_shape_is_named(gpt2: Path, shape: tuple[int, ...]) -> None:
    name = "transformer.h.1.attn.c_attn.weight"
    edit(gpt2, lambda tensors: tensors.update({name: torch.zeros(shape)}))
    assert f"{name}: expected shape (32, 96), got {shape}" in weight_error(gpt2)


@pytest.mark.parametrize("layer", ["01", "-1", "x", "1.0"])
def test_a_layer_with_an_odd_number_is_unexpected(llama: Path, layer: str) -> None:
    name = f"model.layers.{layer}.mlp.up_proj.weight"
    edit(llama, lambda tensors: tensors.update({name: torch.ones(48, 32)}))
    assert f"unexpected {name}" in weight_error(llama)


def test_a_tied_head_of_a_wrong_shape_is_named(tmp_path: Path) -> None:
    reference_model(LLAMA | {"tie_word_embeddings": True}).save_pretrained(tmp_path)
    edit(tmp_path, lambda tensors: tensors.update({"lm_head.weight": torch.ones(96, 32)}))
    assert "lm_head.weight: expected shape (97, 32), got (96, 32)" in weight_error(tmp_path)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.bool])
def test_quantized_weights_are_refused(llama: Path, dtype: torch.dtype) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    edit(llama, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    with pytest.raises(CheckpointError, match=f"{name}: .*{dtype}"):
        load(llama)


# --- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nowhere", "model.safetensors"])
def test_a_path_that_is_no_folder_is_an_error(llama: Path, name: str) -> None:
    assert name in refused(llama / name)


def test_a_folder_without_weights_is_an_error(llama: Path) -> None:
    (llama / "model.safetensors").unlink()
    assert "model.safetensors" in refused(llama)


@pytest.mark.parametrize("name", ["model.pt", "consolidated.00.pth"])
def test_a_pickle_of_another_name_is_refused_with_advice(llama: Path, name: str) -> None:
    (llama / "model.safetensors").rename(llama / name)
    message = refused(llama)
    assert name in message
    assert "from_pretrained(SOURCE).save_pretrained(TARGET)" in message


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 9, 100, -1])
def test_a_torn_file_is_named(llama: Path, kept: int) -> None:
    weights = llama / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    assert "model.safetensors" in refused(llama)


def test_bytes_after_the_tensors_are_an_error(llama: Path) -> None:
    with (llama / "model.safetensors").open("ab") as file:
        file.write(b"more")
    assert "model.safetensors" in refused(llama)


def test_a_git_lfs_pointer_is_recognized(llama: Path) -> None:
    (llama / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n" * 9)
    assert "LFS pointer" in refused(llama)


def test_a_huge_header_is_refused_unread(llama: Path) -> None:
    size = MAX_HEADER_BYTES + 1
    with (llama / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", size))
        file.truncate(size + 100)
    message = refused(llama)
    assert str(MAX_HEADER_BYTES) in message
    assert str(size) in message


ENTRY = b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"[]", "safetensors"),
        (b"{", "safetensors"),
        (b"\xff\xfe\xfd", "safetensors"),
        (b'{"a":{"dtype":"F32","shape":[1000000],"data_offsets":[0,4]}}', "safetensors"),
        (b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', "safetensors"),
        (b'{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}', "safetensors"),
        (b'{"a":' + ENTRY + b',"a":' + ENTRY + b"}", "'a' occurs twice"),
    ],
)
def test_an_invalid_header_is_an_error(llama: Path, header: bytes, message: str) -> None:
    content = struct.pack("<Q", len(header)) + header + bytes(4)
    (llama / "model.safetensors").write_bytes(content)
    assert message in refused(llama)


def test_a_companion_that_is_not_a_file_is_refused(llama: Path) -> None:
    (llama / "tokenizer.json").unlink(missing_ok=True)
    os.mkfifo(llama / "tokenizer.json")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        open_checkpoint(llama).companion("tokenizer.json")


# --- shards -------------------------------------------------------------------------------------


def test_an_absent_shard_is_named(sharded: Path) -> None:
    shard = min(sharded.glob("*.safetensors"))
    shard.unlink()
    assert shard.name in refused(sharded)


def test_a_tensor_in_two_shards_is_an_error(sharded: Path) -> None:
    first, second = sorted(sharded.glob("*.safetensors"))[:2]
    tensors = load_file(first)
    repeated = min(tensors)
    save_file(load_file(second) | {repeated: tensors[repeated]}, second)
    message = refused(sharded)
    assert repeated in message
    assert first.name in message
    assert second.name in message


@pytest.mark.parametrize(
    "name",
    [
        "../model.safetensors",
        "/etc/model.safetensors",
        "folder/model.safetensors",
        "./model.safetensors",
        "..",
        "",
        "pytorch_model.bin",
        7,
        None,
        ["model.safetensors"],
    ],
)
def test_an_index_may_only_name_safetensors_beside_it(sharded: Path, name: object) -> None:
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = name
    (sharded / INDEX).write_text(json.dumps(index))
    message = refused(sharded)
    assert INDEX in message
    assert "next to it" in message


def test_a_name_with_a_null_byte_is_not_a_file(sharded: Path) -> None:
    (sharded / INDEX).write_text(json.dumps({"weight_map": {"a": "\0.safetensors"}}))
    assert INDEX in refused(sharded)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "JSON"),
        (b'{"weight_map": {', "JSON"),
        (b"[]", "JSON object"),
        (b"{}", "weight_map"),
        (b'{"weight_map": []}', "weight_map"),
        (b'{"weight_map": {}}', "weight_map"),
    ],
)
def test_an_invalid_index_is_an_error(sharded: Path, content: bytes, message: str) -> None:
    (sharded / INDEX).write_bytes(content)
    assert message in refused(sharded)


def test_a_huge_index_is_refused_unread(sharded: Path) -> None:
    with (sharded / INDEX).open("wb") as file:
        file.truncate(MAX_INDEX_BYTES + 1)
    assert str(MAX_INDEX_BYTES) in refused(sharded)
