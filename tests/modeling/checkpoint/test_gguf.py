"""GGUF files as checkpoints: the config and the tensors of the models that they were made from."""

import gc
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tests.modeling.checkpoint.gguf_files import (
    LLAMA_KEYS,
    llama_metadata,
    turned,
    write_gguf,
)
from tests.modeling.tiny_models import (
    GPT2,
    LLAMA,
    NO_TOKENS,
    VOCABULARY,
    assert_same_logits,
    random_text,
    reference_logits,
    reference_model,
)
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ortolan.modeling import CheckpointError, ConfigError, WeightError, load, read_config
from ortolan.modeling.checkpoint.checkpoint import Checkpoint, open_checkpoint
from ortolan.modeling.checkpoint.gguf.blocks import block_format, dequantize

IDS = random_text(20)

WINDOWED = LLAMA_KEYS | {
    "sliding_window": "attention.sliding_window",
    "head_dim": "attention.key_length",
}

LAYER_NORM = {key: value for key, value in LLAMA_KEYS.items() if key != "rms_norm_eps"}

GPT2_KEYS = {
    "n_positions": "context_length",
    "n_embd": "embedding_length",
    "n_layer": "block_count",
    "n_head": "attention.head_count",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}

NEOX_KEYS = LAYER_NORM | {"layer_norm_eps": "attention.layer_norm_epsilon"}

HEADS = {"embed_out.weight": "lm_head.weight"}
"""Names of checkpoints that transformers gives to others."""

FALCON: dict[str, Any] = {
    "model_type": "falcon",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    **NO_TOKENS,
}

FALCON_KEYS = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}

Change = Callable[[str, Tensor], Tensor]


def as_it_is(name: str, tensor: Tensor) -> Tensor:
    return tensor


def with_turned_pairs(name: str, tensor: Tensor) -> Tensor:
    heads = {"attn_q": 4, "attn_k": 2}.get(name.split(".")[-2])
    return tensor if heads is None else turned(tensor, heads)


def with_gains_of_one(name: str, tensor: Tensor) -> Tensor:
    return tensor + 1 if name.endswith("norm.weight") else tensor


def transposed(name: str, tensor: Tensor) -> Tensor:
    is_product = name.startswith("blk.") and tensor.dim() == 2
    return tensor.T if is_product else tensor


def with_parts_apart(groups: int, group: int) -> Change:
    """Queries, keys and values one after the other."""

    def change(name: str, tensor: Tensor) -> Tensor:
        if "attn_qkv" not in name:
            return tensor
        dim = tensor.shape[0] // (groups * (group + 2))
        heads = tensor.view(groups, group + 2, dim, *tensor.shape[1:])
        parts = (heads[:, :group], heads[:, group : group + 1], heads[:, group + 1 :])
        return torch.cat([part.reshape(-1, *tensor.shape[1:]) for part in parts])

    return change


CASES: dict[str, tuple[str, dict[str, Any], dict[str, str], dict[str, Any], Change]] = {
    "llama": ("llama", LLAMA, LLAMA_KEYS, {}, with_turned_pairs),
    # Files hold floats of 32 bits.
    "llama-exact": ("llama", LLAMA | {"rms_norm_eps": 2.0**-20}, LLAMA_KEYS, {}, with_turned_pairs),
    "llama-tied-biased": (
        "llama",
        LLAMA | {"tie_word_embeddings": True, "attention_bias": True},
        LLAMA_KEYS,
        {},
        with_turned_pairs,
    ),
    "llama-linear": (
        "llama",
        LLAMA | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}},
        LLAMA_KEYS,
        {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
        with_turned_pairs,
    ),
    "llama-yarn": (
        "llama",
        LLAMA
        | {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 2.0,
                "rope_theta": 500.0,
                "original_max_position_embeddings": 48,
            }
        },
        LLAMA_KEYS,
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 2.0,
            "rope.scaling.original_context_length": 48,
        },
        with_turned_pairs,
    ),
    "qwen2": ("qwen2", LLAMA | {"model_type": "qwen2"}, LLAMA_KEYS, {}, as_it_is),
    "qwen3": (
        "qwen3",
        LLAMA | {"model_type": "qwen3", "head_dim": 16},
        WINDOWED,
        {"attention.value_length": 16, "rope.dimension_count": 16},
        as_it_is,
    ),
    "smollm3": (
        "smollm3",
        LLAMA | {"model_type": "smollm3", "num_hidden_layers": 4},
        LLAMA_KEYS,
        {},
        with_turned_pairs,
    ),
    "olmo2": ("olmo2", LLAMA | {"model_type": "olmo2"}, LLAMA_KEYS, {}, as_it_is),
    "granite": (
        "granite",
        LLAMA
        | {
            "model_type": "granite",
            "attention_multiplier": 0.25,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
        },
        LLAMA_KEYS
        | {
            "attention_multiplier": "attention.scale",
            "embedding_multiplier": "embedding_scale",
            "residual_multiplier": "residual_scale",
            "logits_scaling": "logit_scale",
        },
        {},
        with_turned_pairs,
    ),
    "gemma": (
        "gemma",
        LLAMA | {"model_type": "gemma", "head_dim": 16},
        WINDOWED,
        {},
        with_gains_of_one,
    ),
    "gemma2": (
        "gemma2",
        LLAMA
        | {
            "model_type": "gemma2",
            "head_dim": 16,
            "sliding_window": 5,
            "query_pre_attn_scalar": 16,
        },
        WINDOWED,
        {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        with_gains_of_one,
    ),
    "gemma3": (
        "gemma3",
        LLAMA
        | {
            "model_type": "gemma3_text",
            "num_hidden_layers": 6,
            "head_dim": 16,
            "sliding_window": 5,
            "query_pre_attn_scalar": 16,
            "tie_word_embeddings": True,
        },
        WINDOWED,
        {"rope.freq_base": 1e6},
        with_gains_of_one,
    ),
    "phi3": (
        "phi3",
        LLAMA | {"model_type": "phi3", "sliding_window": 7},
        LLAMA_KEYS | {"sliding_window": "attention.sliding_window"},
        {},
        as_it_is,
    ),
    "starcoder2": (
        "starcoder2",
        LLAMA | {"model_type": "starcoder2", "use_bias": True, "sliding_window": None},
        LAYER_NORM | {"norm_epsilon": "attention.layer_norm_epsilon"},
        {},
        as_it_is,
    ),
    "stablelm": (
        "stablelm",
        LLAMA | {"model_type": "stablelm", "partial_rotary_factor": 0.5},
        LAYER_NORM | {"layer_norm_eps": "attention.layer_norm_epsilon"},
        {"rope.dimension_count": 4, "use_parallel_residual": False},
        as_it_is,
    ),
    "gpt2": ("gpt2", GPT2, GPT2_KEYS, {"feed_forward_length": 128}, transposed),
    "gptneox": (
        "gptneox",
        {
            **{key: value for key, value in LLAMA.items() if key != "num_key_value_heads"},
            "model_type": "gpt_neox",
            "rotary_pct": 0.5,
        },
        NEOX_KEYS,
        {"rope.dimension_count": 4, "use_parallel_residual": True},
        with_parts_apart(4, 1),
    ),
    "falcon": (
        "falcon",
        FALCON | {"multi_query": True},
        FALCON_KEYS,
        {"attention.head_count_kv": 1, "feed_forward_length": 128},
        with_parts_apart(1, 4),
    ),
    "falcon-two-norms": (
        "falcon",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2},
        FALCON_KEYS,
        {"attention.head_count_kv": 2, "feed_forward_length": 128},
        with_parts_apart(2, 2),
    ),
    "bloom": (
        "bloom",
        {
            "model_type": "bloom",
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "n_layer": 2,
            "n_head": 4,
            **NO_TOKENS,
        },
        {
            "hidden_size": "embedding_length",
            "n_layer": "block_count",
            "n_head": "attention.head_count",
            "layer_norm_epsilon": "attention.layer_norm_epsilon",
        },
        {"context_length": 96, "feed_forward_length": 128},
        with_parts_apart(4, 1),
    ),
}


def written(name: str, folder: Path, **more: Any) -> tuple[PreTrainedModel, Path]:
    """The reference model of a case, and its file."""
    arch, values, keys, metadata, change = CASES[name]
    model = reference_model(values)
    file = folder / "model.gguf"
    write_gguf(file, arch, model, llama_metadata(model, keys) | metadata, change=change, **more)
    return model, file


def rebuilt(checkpoint: Checkpoint) -> PreTrainedModel:
    """A model of transformers, from the config and the tensors of a file alone."""
    values = dict(checkpoint.values)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, attn_implementation="eager"
    ).eval()
    source = checkpoint.tensors
    state = {
        HEADS.get(name, name): source.read(name, 0, shape[0])
        for name, shape in source.shapes().items()
    }
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert unexpected == []
    assert set(missing) <= ({"lm_head.weight"} if values["tie_word_embeddings"] else set())
    model.tie_weights()  # type: ignore[no-untyped-call]
    return model


@pytest.mark.parametrize("name", CASES)
def test_a_file_holds_the_model_that_it_was_made_from(name: str, tmp_path: Path) -> None:
    model, file = written(name, tmp_path)
    checkpoint = open_checkpoint(file)
    source = checkpoint.tensors
    stored = model.state_dict()
    for tensor, shape in source.shapes().items():
        own = stored[HEADS.get(tensor, tensor)]
        assert shape == tuple(own.shape), tensor
        torch.testing.assert_close(source.read(tensor, 0, shape[0]), own, msg=tensor)
    # By the reference's own forward: the config is whole, and no key is unknown to it.
    assert_same_logits(reference_logits(rebuilt(checkpoint), IDS), reference_logits(model, IDS))


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_every_slice_is_what_the_library_dequantizes(kind: str, tmp_path: Path) -> None:
    name = "blk.1.attn_q.weight"
    model, file = written("llama", tmp_path, kinds={name: kind})
    number = gguf.GGMLQuantizationType[kind]
    rows = turned(model.state_dict()["model.layers.1.self_attn.q_proj.weight"], 4).numpy()
    whole = gguf.quants.dequantize(gguf.quants.quantize(rows, number), number)
    # Back to the order of the checkpoint.
    whole = whole.reshape(4, 4, 2, 32).swapaxes(1, 2).reshape(32, 32)
    source = open_checkpoint(file).tensors
    published = "model.layers.1.self_attn.q_proj.weight"
    for start, stop in ((0, 32), (3, 4), (5, 29)):
        read = source.read(published, start, stop).float().numpy()
        np.testing.assert_array_equal(read, whole[start:stop])
    columns = source.read(published, 2, 7, axis=1).float().numpy()
    np.testing.assert_array_equal(columns, whole[:, 2:7])


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4"])
def test_formats_that_only_llama_cpp_writes_are_dequantized(kind: str) -> None:
    number = gguf.GGMLQuantizationType[kind]
    form = block_format(int(number), "a", Path("a.gguf"))
    data = np.random.default_rng(0).integers(0, 60, (3, form.block_bytes), np.uint8)
    expected = gguf.quants.dequantize(data, number)
    assert expected.shape == (3, form.width)
    np.testing.assert_array_equal(dequantize(data, form).numpy(), expected)


def test_scaled_frequencies_are_read_as_those_of_llama_3(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    model = reference_model(LLAMA | {"head_dim": 32, "rope_parameters": rope})
    plain = 500_000.0 ** -(torch.arange(16) / 16)
    factors = plain / model.model.rotary_emb.inv_freq
    assert factors.unique().numel() > 2
    file = tmp_path / "model.gguf"
    metadata = llama_metadata(model, WINDOWED)
    extra = {"rope_freqs.weight": factors}
    write_gguf(file, "llama", model, metadata, change=with_turned_pairs, extra=extra)
    scaling = open_checkpoint(file).values["rope_scaling"]
    assert scaling == {key: value for key, value in rope.items() if key != "rope_theta"}
    write_gguf(file, "llama", model, metadata, extra={"rope_freqs.weight": factors * 2})
    with pytest.raises(CheckpointError, match="expected factors of the frequencies as Llama 3"):
        open_checkpoint(file)


def test_two_tables_of_factors_are_those_of_longrope(tmp_path: Path) -> None:
    arch, values, keys, _, change = CASES["phi3"]
    model = reference_model(values)
    tables = {"long": [1.0, 2.0, 3.0, 4.5], "short": [1.0, 1.0, 1.5, 2.0]}
    write_gguf(
        tmp_path / "model.gguf",
        arch,
        model,
        llama_metadata(model, keys)
        | {"rope.scaling.original_context_length": 48, "rope.scaling.attn_factor": 1.25},
        change=change,
        extra={f"rope_factors_{name}.weight": torch.tensor(f) for name, f in tables.items()},
    )
    checkpoint = open_checkpoint(tmp_path / "model.gguf")
    assert checkpoint.values["rope_scaling"] == {
        "rope_type": "longrope",
        "long_factor": tables["long"],
        "short_factor": tables["short"],
        "original_max_position_embeddings": 48,
        "attention_factor": 1.25,
    }
    assert checkpoint.values["original_max_position_embeddings"] == 48


def test_a_file_is_loaded_as_the_folder_that_it_was_made_from(tmp_path: Path) -> None:
    model, file = written("llama-exact", tmp_path)
    model.save_pretrained(tmp_path / "folder")
    ours, folder = load(file), load(tmp_path / "folder")
    assert ours.config == folder.config
    with torch.inference_mode():
        assert torch.equal(ours(IDS), folder(IDS))


def test_a_folder_with_one_file_is_that_file(tmp_path: Path) -> None:
    written("llama", tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.values["model_type"] == "llama"
    assert checkpoint.sha256() == open_checkpoint(tmp_path / "model.gguf").sha256()
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"got 2. Give one of them: model.gguf, other.gguf"):
        open_checkpoint(tmp_path)


def test_the_folder_of_made_files_goes_with_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(written("llama", tmp_path)[1])
    folder, tensors = checkpoint.folder, checkpoint.tensors
    assert {file.name for file in folder.iterdir()} == {"config.json", "generation_config.json"}
    del checkpoint
    gc.collect()
    assert folder.is_dir()
    del tensors
    gc.collect()
    assert not folder.exists()


def test_a_key_that_nobody_knows_is_an_unknown_key_of_the_config(tmp_path: Path) -> None:
    arch, values, keys, _, change = CASES["llama"]
    model = reference_model(values)
    file = tmp_path / "model.gguf"
    write_gguf(
        file, arch, model, llama_metadata(model, keys) | {"attention.novel": 2}, change=change
    )
    with pytest.raises(ConfigError, match=r"llama\.attention\.novel"):
        read_config(file)
    assert read_config(file, accept_unknown=["llama.attention.novel"]).model_type == "llama"


# --- refused ------------------------------------------------------------------------------------


def refused(file: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(file)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_file_cut_short_is_refused_wherever_it_was_cut(tmp_path: Path) -> None:
    file = written("llama", tmp_path)[1]
    content = file.read_bytes()
    for kept in (4, 8, 20, 24, 100, 1000, 2500, len(content) // 2, len(content) - 4):
        file.write_bytes(content[:kept])
        assert str(file) in refused(file), kept


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"<!doctype html>")
    assert "expected a GGUF file, got one that does not begin so" in refused(
        tmp_path / "model.gguf"
    )


@pytest.mark.parametrize("version", [0, 1, 4, 3 << 24])
def test_another_version_is_refused(tmp_path: Path, version: int) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, 0))
    assert f"little-endian, got {version}" in refused(file)


@pytest.mark.parametrize("counts", [(1 << 60, 0), (0, 1 << 60), (2, 0), (0, 2)])
def test_a_header_that_promises_more_than_there_is_is_refused(
    tmp_path: Path, counts: tuple[int, int]
) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, *counts))
    assert "expected a whole GGUF file" in refused(file)


def test_an_unknown_architecture_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "rwkv6")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    message = refused(file)
    assert "expected general.architecture to be one of llama, qwen2" in message
    assert "got 'rwkv6'" in message


def test_a_format_that_nobody_dequantizes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="got one of number 4"):
        block_format(4, "blk.0.attn_q.weight", tmp_path)


def test_one_file_of_several_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_uint16("split.count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert "expected a whole model, got one file of 3" in refused(file)


def test_a_tensor_that_is_absent_is_named(tmp_path: Path) -> None:
    arch, values, keys, _, change = CASES["qwen2"]
    model = reference_model(values | {"num_hidden_layers": 1})
    file = tmp_path / "model.gguf"
    write_gguf(file, arch, model, llama_metadata(model, keys) | {"block_count": 2}, change=change)
    with pytest.raises(WeightError, match=r"missing model\.layers\.1\.mlp\.down_proj\.weight"):
        load(file)
