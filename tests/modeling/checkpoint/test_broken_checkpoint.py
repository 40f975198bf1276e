"""Checkpoint folders that are torn, incomplete, hostile, or not of the config beside them."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
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


# --- weights that are not those of the config ---------------------------------------------------


def test_of_many_differences_the_first_are_named(llama: Path) -> None:
    def change(tensors: Tensors) -> None:
        for number in range(40):
            tensors[f"other.{number:02}.weight"] = torch.ones(1)

    edit(llama, change)
    message = weight_error(llama)
    assert "got 40 differences: unexpected other.00.weight;" in message
    assert "other.15.weight; and 24 more. The checkpoint" in message
    assert "other.16" not in message


def test_every_difference_is_named_at_once(llama: Path) -> None:
    def change(tensors: Tensors) -> None:
        del tensors["model.layers.0.self_attn.k_proj.weight"]
        del tensors["model.norm.weight"]
        tensors["model.layers.1.self_attn.q_norm.weight"] = torch.ones(8)
        tensors["model.layers.9.mlp.up_proj.weight"] = torch.ones(48, 32)
        tensors["model.layers.0.mlp.down_proj.weight"] = torch.ones(48, 32)

    edit(llama, change)
    message = weight_error(llama)
    assert "got 5 differences" in message
    for part in (
        "missing model.layers.0.self_attn.k_proj.weight;",
        "missing model.norm.weight;",
        "unexpected model.layers.1.self_attn.q_norm.weight;",
        "unexpected model.layers.9.mlp.up_proj.weight",
        "model.layers.0.mlp.down_proj.weight: expected shape (32, 48), got (48, 32)",
    ):
        assert part in message


def test_biases_that_the_config_does_not_have_are_unexpected(llama: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.bias"
    edit(llama, lambda tensors: tensors.update({name: torch.ones(32)}))
    assert f"1 differences: unexpected {name}." in weight_error(llama)


def test_projections_of_each_others_size_are_an_error_though_their_sum_fits(llama: Path) -> None:
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
    with pytest.raises(CheckpointError, match=f"{name}: expected bf16, fp16 or fp32, got {dtype}"):
        load(llama)


# --- files --------------------------------------------------------------------------------------


def test_an_absent_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere: expected a checkpoint folder"):
        load(tmp_path / "nowhere")


def test_a_file_in_place_of_the_folder_is_an_error(llama: Path) -> None:
    with pytest.raises(CheckpointError, match="expected a checkpoint folder"):
        load(llama / "model.safetensors")


def test_a_folder_without_weights_is_an_error(llama: Path) -> None:
    (llama / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"expected model\.safetensors or .*, got neither"):
        load(llama)


@pytest.mark.parametrize("name", ["model.pt", "consolidated.00.pth"])
def test_a_pickle_of_another_name_is_refused_with_the_way_to_convert_it(
    llama: Path, name: str
) -> None:
    (llama / "model.safetensors").rename(llama / name)
    with pytest.raises(CheckpointError) as caught:
        load(llama)
    message = str(caught.value)
    assert f"{name}: expected model.safetensors or pytorch_model.bin, got a pickle" in message
    assert "from_pretrained(SOURCE).save_pretrained(TARGET)" in message


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 9, 100, -1])
def test_a_torn_file_is_named(llama: Path, kept: int) -> None:
    weights = llama / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: expected a"):
        load(llama)


def test_a_file_with_more_than_its_tensors_is_an_error(llama: Path) -> None:
    with (llama / "model.safetensors").open("ab") as file:
        file.write(b"more")
    with pytest.raises(CheckpointError, match="expected a whole safetensors file"):
        load(llama)


def test_a_pointer_that_was_never_fetched_is_recognised(llama: Path) -> None:
    (llama / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n" * 9)
    with pytest.raises(CheckpointError, match="a pointer that was never fetched"):
        load(llama)


def test_a_header_that_would_take_long_to_parse_is_refused_unread(llama: Path) -> None:
    size = MAX_HEADER_BYTES + 1
    with (llama / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", size))
        file.truncate(size + 100)
    with pytest.raises(CheckpointError, match=f"at most {MAX_HEADER_BYTES} bytes, got {size}"):
        load(llama)


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{",
        b"\xff\xfe\xfd",
        b'{"a":{"dtype":"F32","shape":[1000000],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}',
    ],
)
def test_a_header_that_makes_no_sense_is_an_error(llama: Path, header: bytes) -> None:
    content = struct.pack("<Q", len(header)) + header + bytes(4)
    (llama / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="expected a whole safetensors file"):
        load(llama)


def test_a_name_given_twice_is_refused(llama: Path) -> None:
    entry = b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    header = b'{"a":' + entry + b',"a":' + entry + b"}"
    content = struct.pack("<Q", len(header)) + header + bytes(4)
    (llama / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="expected a name once, got 'a' again"):
        load(llama)


def test_a_companion_that_is_no_file_is_refused(llama: Path) -> None:
    (llama / "tokenizer.json").unlink(missing_ok=True)
    os.mkfifo(llama / "tokenizer.json")
    with pytest.raises(CheckpointError, match="expected a file, got something else"):
        open_checkpoint(llama).companion("tokenizer.json")


# --- shards -------------------------------------------------------------------------------------


def test_an_absent_shard_is_named(sharded: Path) -> None:
    shard = min(sharded.glob("*.safetensors"))
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"expected {shard.name} beside it"):
        load(sharded)


def test_a_tensor_in_two_shards_is_an_error(sharded: Path) -> None:
    first, second = sorted(sharded.glob("*.safetensors"))[:2]
    tensors = load_file(first)
    repeated = min(tensors)
    save_file(load_file(second) | {repeated: tensors[repeated]}, second)
    with pytest.raises(CheckpointError, match=f"{second.name}: .*{repeated} again"):
        load(sharded)


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
    with pytest.raises(CheckpointError, match=r"expected names of \.safetensors files beside it"):
        load(sharded)


def test_a_name_with_a_null_byte_is_no_file(sharded: Path) -> None:
    (sharded / INDEX).write_text(json.dumps({"weight_map": {"a": "\0.safetensors"}}))
    with pytest.raises(CheckpointError, match="got no such file"):
        load(sharded)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected JSON"),
        (b'{"weight_map": {', "expected JSON"),
        (b"[]", "expected a JSON object, got list"),
        (b"{}", "expected an object weight_map, got None"),
        (b'{"weight_map": []}', "expected an object weight_map"),
        (b'{"weight_map": {}}', "expected an object weight_map"),
    ],
)
def test_an_index_that_makes_no_sense_is_an_error(
    sharded: Path, content: bytes, message: str
) -> None:
    (sharded / INDEX).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{INDEX}: {message}"):
        load(sharded)


def test_a_huge_index_is_refused_unread(sharded: Path) -> None:
    with (sharded / INDEX).open("wb") as file:
        file.truncate(MAX_INDEX_BYTES + 1)
    with pytest.raises(CheckpointError, match=f"at most {MAX_INDEX_BYTES} bytes"):
        load(sharded)
