"""Checkpoint folders that are torn, incomplete, hostile, or contradict their config."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.modeling.checkpoint.refusals import edit, refused, reshape, weight_error
from tests.modeling.tiny_models import LLAMA, reference_model
from tests.tiny.decoders import GPT2

from ortolan.modeling import CheckpointError
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.checkpoint.safetensors import MAX_HEADER_BYTES
from ortolan.modeling.checkpoint.shards import MAX_INDEX_BYTES

INDEX = "model.safetensors.index.json"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    reference_model(LLAMA).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    reference_model(LLAMA).save_pretrained(tmp_path, max_shard_size="20KB")
    return tmp_path


# --- weights that contradict the config -----------------------------------------------------------

ATTENTION, MLP = "model.layers.0.self_attn", "model.layers.0.mlp"
PACKED = "transformer.h.1.attn.c_attn.weight"

SHAPES: list[Any] = [
    (
        LLAMA,
        {
            f"{ATTENTION}.k_proj.weight": None,
            "model.norm.weight": None,
            "model.layers.1.self_attn.q_norm.weight": (8,),
            "model.layers.9.mlp.up_proj.weight": (48, 32),
            f"{MLP}.down_proj.weight": (48, 32),
        },
        (
            "5 differences",
            f"missing {ATTENTION}.k_proj.weight;",
            "missing model.norm.weight;",
            "unexpected model.layers.1.self_attn.q_norm.weight;",
            "unexpected model.layers.9.mlp.up_proj.weight",
            f"{MLP}.down_proj.weight: expected shape (32, 48), got (48, 32)",
        ),
    ),
    (
        LLAMA,
        {f"other.{number:02}.weight": (1,) for number in range(40)},
        ("40 differences", "other.15.weight; and 24 more."),
    ),
    (LLAMA, {f"{ATTENTION}.q_proj.bias": (32,)}, (f"unexpected {ATTENTION}.q_proj.bias",)),
    # Swapped projections, of which the sum of the rows fits.
    (
        LLAMA,
        {f"{ATTENTION}.q_proj.weight": (16, 32), f"{ATTENTION}.k_proj.weight": (32, 32)},
        (
            f"{ATTENTION}.q_proj.weight: expected shape (32, 32), got (16, 32)",
            f"{ATTENTION}.k_proj.weight: expected shape (16, 32), got (32, 32)",
        ),
    ),
    *(
        (GPT2, {PACKED: shape}, (f"{PACKED}: expected shape (32, 96), got {shape}",))
        for shape in ((), (32,), (32, 96, 1), (96, 32), (0, 96), (32, 95))
    ),
    *(
        (LLAMA, {name: (48, 32)}, (f"unexpected {name}",))
        for layer in ("01", "-1", "x", "1.0")
        for name in [f"model.layers.{layer}.mlp.up_proj.weight"]
    ),
    (
        LLAMA | {"tie_word_embeddings": True},
        {"lm_head.weight": (96, 32)},
        ("lm_head.weight: expected shape (97, 32), got (96, 32)",),
    ),
]


@pytest.mark.parametrize(("values", "shapes", "parts"), SHAPES)
def test_weights_that_contradict_the_config_are_named(
    values: dict[str, Any],
    shapes: dict[str, tuple[int, ...] | None],
    parts: tuple[str, ...],
    tmp_path: Path,
) -> None:
    reference_model(values).save_pretrained(tmp_path)
    reshape(tmp_path, shapes)
    message = weight_error(tmp_path)
    for part in parts:
        assert part in message


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.bool])
def test_quantized_weights_are_refused(llama: Path, dtype: torch.dtype) -> None:
    name = f"{MLP}.up_proj.weight"
    edit(llama, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    message = refused(llama)
    assert name in message
    assert str(dtype) in message


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


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        *((lambda content, size=size: content[:size], "") for size in (0, 1, 7, 8, 9, 100, -1)),
        (lambda content: content + b"more", ""),
        (lambda _: b"version https://git-lfs.github.com/spec/v1\n" * 9, "LFS pointer"),
    ],
)
def test_a_damaged_file_is_refused(
    llama: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    weights = llama / "model.safetensors"
    weights.write_bytes(damage(weights.read_bytes()))
    error = refused(llama)
    assert weights.name in error
    assert message in error


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
def test_an_index_may_only_name_safetensors_next_to_it(sharded: Path, name: object) -> None:
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = name
    (sharded / INDEX).write_text(json.dumps(index))
    message = refused(sharded)
    assert INDEX in message
    assert "next to it" in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "JSON"),
        (b'{"weight_map": {', "JSON"),
        (b"[]", "JSON object"),
        (b"{}", "weight_map"),
        (b'{"weight_map": []}', "weight_map"),
        (b'{"weight_map": {}}', "weight_map"),
        (b'{"weight_map": {"a": "\\u0000.safetensors"}}', INDEX),
    ],
)
def test_an_invalid_index_is_an_error(sharded: Path, content: bytes, message: str) -> None:
    (sharded / INDEX).write_bytes(content)
    assert message in refused(sharded)


def test_a_huge_index_is_refused_unread(sharded: Path) -> None:
    with (sharded / INDEX).open("wb") as file:
        file.truncate(MAX_INDEX_BYTES + 1)
    assert str(MAX_INDEX_BYTES) in refused(sharded)
