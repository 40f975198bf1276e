"""GGUF files that are torn, unknown, or contradict their model."""

import struct
from pathlib import Path

import gguf
import pytest
from tests.modeling.checkpoint.gguf_cases import CASES, written
from tests.modeling.checkpoint.gguf_files import (
    llama_metadata,
    write_gguf,
)
from tests.modeling.checkpoint.refusals import refused
from tests.modeling.tiny_models import (
    reference_model,
)

from ortolan.modeling import CheckpointError, ConfigError, WeightError, load, read_config
from ortolan.modeling.checkpoint.gguf.blocks import block_format


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    file = written("llama", tmp_path)[1]
    content = file.read_bytes()
    for size in (4, 8, 20, 24, 100, 1000, 2500, len(content) // 2, len(content) - 4):
        file.write_bytes(content[:size])
        assert str(file) in refused(file), size


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<!doctype html>", "not a GGUF file"),
        *(
            (b"GGUF" + struct.pack("<IQQ", version, 0, 0), f"version {version}")
            for version in (0, 1, 4, 3 << 24)
        ),
        # Numbers of tensors and of metadata values that the file does not contain.
        *(
            (b"GGUF" + struct.pack("<IQQ", 3, *counts), "complete GGUF file")
            for counts in ((1 << 60, 0), (0, 1 << 60), (2, 0), (0, 2))
        ),
    ],
)
def test_an_invalid_header_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    assert message in refused(file)


@pytest.mark.parametrize(
    ("architecture", "split", "messages"),
    [("rwkv6", 1, ("general.architecture", "llama", "'rwkv6'")), ("llama", 3, ("3 files",))],
)
def test_an_unknown_architecture_and_a_split_file_are_refused(
    architecture: str, split: int, messages: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_uint16("split.count", split)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    message = refused(file)
    assert all(part in message for part in messages)


def test_a_format_that_gguf_cannot_dequantize_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="type 4"):
        block_format(4, "blk.0.attn_q.weight", tmp_path)


def test_a_tensor_that_is_absent_is_named(tmp_path: Path) -> None:
    arch, values, keys, _, change = CASES["qwen2"]
    model = reference_model(values | {"num_hidden_layers": 1})
    file = tmp_path / "model.gguf"
    write_gguf(file, arch, model, llama_metadata(model, keys) | {"block_count": 2}, change=change)
    with pytest.raises(WeightError, match=r"missing model\.layers\.1\.mlp\.down_proj\.weight"):
        load(file)


def test_an_unknown_key_is_an_unknown_key_of_the_config(tmp_path: Path) -> None:
    arch, values, keys, _, change = CASES["llama"]
    model = reference_model(values)
    file = tmp_path / "model.gguf"
    write_gguf(
        file, arch, model, llama_metadata(model, keys) | {"attention.novel": 2}, change=change
    )
    with pytest.raises(ConfigError, match=r"llama\.attention\.novel"):
        read_config(file)
    assert read_config(file, accept_unknown=["llama.attention.novel"]).model_type == "llama"
