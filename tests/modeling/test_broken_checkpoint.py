"""Checkpoint folders that are torn, incomplete, hostile, or not of the config beside them."""

import contextlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.modeling.tiny_models import GPT2, LLAMA, reference_model
from torch import Tensor

from ortolan.modeling import CheckpointError, ConfigError, WeightError, load, read_config
from ortolan.modeling.checkpoint import (
    MAX_CONFIG_BYTES,
    MAX_HEADER_BYTES,
    MAX_INDEX_BYTES,
    config_from_hf,
)

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


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_a_pickle_is_refused_with_the_way_to_convert_it(llama: Path, name: str) -> None:
    (llama / "model.safetensors").rename(llama / name)
    with pytest.raises(CheckpointError) as caught:
        load(llama)
    message = str(caught.value)
    assert f"{name}: expected safetensors, got a pickle, which can run code" in message
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
    with pytest.raises(CheckpointError, match="expected names of safetensors files beside it"):
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


# --- config.json --------------------------------------------------------------------------------


def write_config(folder: Path, **changes: object) -> Path:
    (folder / "config.json").write_text(json.dumps(LLAMA | changes))
    return folder


def test_a_folder_without_a_config_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"with config\.json, got no such file"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected JSON"),
        (b'{"model_type": "lla', "expected JSON"),
        (b"\xff\xfe", "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        (b'{"a":' * 100_000, "expected JSON"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "expected JSON"),
        (b"null", "expected a JSON object, got NoneType"),
        (b'"llama"', "expected a JSON object, got str"),
    ],
    ids=["empty", "torn", "not-text", "deep-list", "deep-object", "long-number", "null", "text"],
)
def test_a_config_that_is_no_object_is_an_error(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"config\.json: {message}"):
        read_config(tmp_path)


def test_a_huge_config_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(MAX_CONFIG_BYTES + 1)
    with pytest.raises(CheckpointError, match=f"at most {MAX_CONFIG_BYTES} bytes"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "expected one of gpt2, llama, mistral, qwen2, got 'mamba'"),
        ({"model_type": None}, "expected model_type, got nothing"),
        ({"model_type": ["llama"]}, "expected model_type of type str"),
        ({"attention_sinks": 4}, "whose effect is known, got attention_sinks"),
        ({"a": 1, "b": 2}, "whose effect is known, got a, b"),
        ({"quantization_config": {"bits": 4}}, "got quantization_config"),
        ({"add_cross_attention": True}, "add_cross_attention false, got true"),
        ({"hidden_size": "32"}, "hidden_size of type int, got '32'"),
        ({"hidden_size": 32.0}, "hidden_size of type int"),
        ({"hidden_size": True}, "hidden_size of type int"),
        ({"hidden_size": None}, "expected hidden_size, got nothing"),
        ({"hidden_size": 0}, "hidden_size to be 1 to"),
        ({"vocab_size": -5}, "vocab_size to be 1 to"),
        ({"num_attention_heads": 0}, "num_attention_heads to be 1 to"),
        ({"num_attention_heads": 64}, "head_dim to be 1 to .*, got 0"),
        ({"num_key_value_heads": 0}, "num_key_value_heads to be 1 to"),
        ({"num_key_value_heads": 3}, "num_heads divisible by num_kv_heads"),
        ({"num_hidden_layers": 0}, "num_hidden_layers to be 1 to"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers to be 1 to"),
        ({"vocab_size": 10**400}, "vocab_size to be 1 to"),
        ({"max_position_embeddings": 10**12}, "max_position_embeddings to be 1 to"),
        ({"head_dim": 5}, "an even number of rotated channels"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps to be finite"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps to be finite"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps of type float"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings of type bool"),
        ({"hidden_act": "xielu"}, "activation of relu, .* got 'xielu'"),
        ({"eos_token_id": "</s>"}, "eos_token_id to be token ids"),
        ({"eos_token_id": [1, True]}, "eos_token_id to be token ids"),
        ({"bos_token_id": [1]}, "bos_token_id of type int"),
        ({"rope_scaling": "linear"}, "rope_scaling of type dict"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "got 'longrope'"),
        ({"partial_rotary_factor": 0.5}, "expected all 8 channels of a head rotated, got 4"),
        ({"rope_interleaved": True}, "rope_interleaved false, got true"),
        ({"model_type": "qwen2", "use_mrope": True}, "use_mrope false, got true"),
        ({"model_type": "qwen2", "layer_types": ["full_attention"]}, "layer_types .* 2 layers"),
        ({"model_type": "qwen2", "layer_types": ["x", "y"]}, "layer_types"),
        ({"model_type": "qwen2", "layer_types": [["x"], {}]}, "layer_types"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window to be 1 to"),
    ],
)
def test_a_config_that_is_not_understood_is_an_error(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(write_config(tmp_path, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx false"),
        ({"add_cross_attention": True}, "add_cross_attention false"),
        ({"n_head": 5}, "n_embd divisible by n_head, got 32 and 5"),
        ({"n_head": 64}, "n_embd divisible by n_head, got 32 and 64"),
        ({"activation_function": "gelu_fast"}, "got 'gelu_fast'"),
    ],
)
def test_a_gpt2_that_is_not_understood_is_an_error(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GPT2 | changes))
    with pytest.raises(ConfigError, match=message):
        read_config(tmp_path)


ROPE = {
    "rope_type": "yarn",
    "factor": 2.0,
    "original_max_position_embeddings": 64,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}

KINDS = ["default", "linear", "dynamic", "llama3", "yarn", "longrope"]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)

ropes = st.tuples(
    st.sampled_from(KINDS),
    st.dictionaries(st.sampled_from([*ROPE, "truncate", "beta_fast", "rope_theta"]), json_values),
).map(lambda drawn: ROPE | {"rope_type": drawn[0]} | drawn[1])


@settings(max_examples=200, deadline=None)
@given(
    family=st.sampled_from(["llama", "mistral", "qwen2", "gpt2"]),
    changes=st.dictionaries(
        st.sampled_from([*LLAMA, *GPT2, "head_dim", "layer_types", "sliding_window"]),
        json_values,
        max_size=3,
    ),
    rope=st.none() | ropes | json_values,
)
def test_any_config_is_read_or_refused(
    family: str, changes: dict[str, object], rope: object
) -> None:
    values = (GPT2 if family == "gpt2" else LLAMA) | {"rope_scaling": rope} | changes
    with contextlib.suppress(ConfigError):
        config_from_hf(values | {"model_type": family})
