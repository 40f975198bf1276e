"""GGUF files as checkpoints: like the original models, or refused with a reason."""

import gc
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from tests.modeling.checkpoint.formats import refused
from tests.modeling.checkpoint.gguf_cases import CASES, HEADS, with_turned_pairs, written
from tests.modeling.checkpoint.gguf_files import metadata_of, turned, write_gguf
from tests.modeling.tiny_models import (
    LLAMA,
    assert_same_logits,
    random_text,
    reference_logits,
    reference_model,
)
from tests.refusals import refusal
from tests.tiny import FAMILY_CONFIGS
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ortolan.modeling import load, read_config
from ortolan.modeling.checkpoint.checkpoint import Checkpoint, open_checkpoint
from ortolan.modeling.checkpoint.folder import open_weights
from ortolan.modeling.checkpoint.gguf.blocks import (
    CODE_FORMATS,
    block_format,
    dequantize,
    read_codes,
)
from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.lazy_tensor import whole_of

IDS = random_text(20)


def rebuilt(checkpoint: Checkpoint) -> PreTrainedModel:
    """A model of transformers, built from the config and tensors of a file only."""
    values: dict[str, Any] = dict(checkpoint.values)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, attn_implementation="eager"
    ).eval()
    source = checkpoint.tensors
    state = {HEADS.get(name, name): whole_of(tensor) for name, tensor in source.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert unexpected == []
    assert set(missing) <= ({"lm_head.weight"} if values["tie_word_embeddings"] else set())
    model.tie_weights()
    return model


@pytest.mark.parametrize("name", CASES)
def test_a_file_equals_the_original_model(name: str, tmp_path: Path) -> None:
    model, file = written(name, tmp_path)
    checkpoint = open_checkpoint(file)
    source = checkpoint.tensors
    stored = model.state_dict()
    for name, tensor in source.items():
        own = stored[HEADS.get(name, name)]
        assert tensor.shape == own.shape, name
        torch.testing.assert_close(whole_of(tensor), own, msg=name)
    # Computed by transformers, which knows all keys of the config.
    expected = reference_logits(model, IDS)
    assert_same_logits(reference_logits(rebuilt(checkpoint), IDS), expected)
    with torch.inference_mode():
        assert_same_logits(load(checkpoint)(IDS), expected)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_slices_equal_those_of_the_gguf_library(kind: str, tmp_path: Path) -> None:
    name = "blk.1.attn_q.weight"
    model, file = written("llama", tmp_path, kinds={name: kind})
    number = gguf.GGMLQuantizationType[kind]
    rows = turned(model.state_dict()["model.layers.1.self_attn.q_proj.weight"], 4).numpy()
    whole = gguf.quants.dequantize(gguf.quants.quantize(rows, number), number)
    # Back to the order of the checkpoint.
    whole = whole.reshape(4, 4, 2, 32).swapaxes(1, 2).reshape(32, 32)
    tensor = open_checkpoint(file).tensors["model.layers.1.self_attn.q_proj.weight"]
    for start, stop in ((0, 32), (3, 4), (5, 29)):
        read = tensor.read(start, stop).float().numpy()
        np.testing.assert_array_equal(read, whole[start:stop])
    columns = tensor.read(2, 7, 1).float().numpy()
    np.testing.assert_array_equal(columns, whole[:, 2:7])


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4"])
def test_formats_that_only_llama_cpp_writes_are_dequantized(kind: str) -> None:
    number = gguf.GGMLQuantizationType[kind]
    form = block_format(int(number), "a", Path("a.gguf"))
    data = np.random.default_rng(0).integers(0, 60, (3, form.block_bytes), np.uint8)
    expected = gguf.quants.dequantize(data, number)
    assert expected.shape == (3, form.width)
    np.testing.assert_array_equal(dequantize(data, form).numpy(), expected)


@pytest.mark.parametrize("kind", CODE_FORMATS)
def test_codes_equal_what_the_library_dequantizes(kind: str) -> None:
    number = gguf.GGMLQuantizationType[kind]
    form = block_format(int(number), "a", Path("a.gguf"))
    generator = np.random.default_rng(0)
    data = generator.integers(0, 256, (5, 3, form.block_bytes), np.uint8)
    halves = generator.normal(size=(5, 3, 2)).astype(np.float16).view(np.uint8)
    first = 4 if CODE_FORMATS[kind].minimums else 2
    data[..., :first] = halves[..., :first]
    rows = data.reshape(5, -1)
    codes = read_codes(rows, form)
    assert int(codes.values.max()) < 1 << CODE_FORMATS[kind].bits
    steps = codes.values.view(5, -1, 32).float() - codes.zeros.float()[..., None]
    values = steps * codes.scales[..., None] + codes.minimums[..., None]
    expected = torch.from_numpy(gguf.quants.dequantize(rows, number))
    torch.testing.assert_close(values.flatten(1), expected, rtol=1e-5, atol=1e-4)


def test_codes_of_a_layer_that_is_published_transposed_are_those_of_its_weight(
    tmp_path: Path,
) -> None:
    _, file = written("gpt2", tmp_path, kinds={"blk.1.attn_qkv.weight": "Q8_0"})
    weights, name = open_weights(file, read_config(file)), "blocks.1.attention.qkv.weight"
    codes = weights.codes(name)
    assert codes is not None
    assert codes.format == CODE_FORMATS["Q8_0"]
    values, scales, zeros, _ = codes.rows(5, 90)
    rows = (values.float() - zeros.float()) * scales  # one group of 32
    torch.testing.assert_close(rows, weights.rows(name, 5, 90))


def test_stacked_experts_are_read_one_by_one(tmp_path: Path) -> None:
    model = reference_model(FAMILY_CONFIGS["qwen3_moe"])
    plain: dict[str, Tensor] = {}
    stacks: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        layer = name.split(".")[2] if ".layers." in name else ""
        if name.endswith("experts.gate_up_proj"):
            gate, up = torch.chunk(tensor, 2, dim=1)
            stacks[f"blk.{layer}.ffn_gate_exps.weight"] = gate
            stacks[f"blk.{layer}.ffn_up_exps.weight"] = up
        elif name.endswith("experts.down_proj"):
            stacks[f"blk.{layer}.ffn_down_exps.weight"] = tensor
        else:
            plain[name] = tensor
    config = FAMILY_CONFIGS["qwen3_moe"]
    metadata = metadata_of(model) | {
        "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
    }
    file = tmp_path / "model.gguf"
    write_gguf(file, "qwen3moe", model, metadata, extra=stacks, tensors=plain)
    source = open_checkpoint(file).tensors
    second = source["model.layers.1.mlp.experts.1.up_proj.weight"].read(3, 9)
    assert torch.equal(second, stacks["blk.1.ffn_up_exps.weight"][1, 3:9])
    with torch.inference_mode():
        assert_same_logits(load(file)(IDS), reference_logits(model, IDS))


def test_scaled_frequencies_are_recognized_as_llama_3(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
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
    metadata = metadata_of(model)
    extra = {"rope_freqs.weight": factors}
    write_gguf(file, "llama", model, metadata, change=with_turned_pairs, extra=extra)
    scaling = open_checkpoint(file).values["rope_scaling"]
    assert scaling == {key: value for key, value in rope.items() if key != "rope_theta"}
    write_gguf(file, "llama", model, metadata, extra={"rope_freqs.weight": factors * 2})
    assert refused(file) == snapshot


def test_two_factor_tables_are_longrope(tmp_path: Path) -> None:
    arch, values, _, change = CASES["phi3"]
    model = reference_model(values)
    tables = {"long": [1.0, 2.0, 3.0, 4.5], "short": [1.0, 1.0, 1.5, 2.0]}
    write_gguf(
        tmp_path / "model.gguf",
        arch,
        model,
        metadata_of(model)
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
    rope = {**checkpoint.values["rope_scaling"], "rope_theta": 10_000.0}
    model = reference_model(
        values | {"rope_parameters": rope, "original_max_position_embeddings": 48}
    )
    with torch.inference_mode():
        for length, context in ((48, None), (49, 96)):
            ids = random_text(length)
            ours = load(tmp_path / "model.gguf", max_context=context)
            assert ours.config.context_length == (context or 48)
            assert_same_logits(ours(ids), reference_logits(model, ids))


def test_a_file_loads_like_the_original_folder(tmp_path: Path) -> None:
    model, file = written("llama-exact", tmp_path)
    model.save_pretrained(tmp_path / "folder")
    ours, folder = load(file), load(tmp_path / "folder")
    assert ours.config == folder.config
    with torch.inference_mode():
        assert torch.equal(ours(IDS), folder(IDS))


def test_a_folder_with_one_file_is_that_file(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    written("llama", tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.values["model_type"] == "llama"
    assert checkpoint.sha256() == open_checkpoint(tmp_path / "model.gguf").sha256()
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    assert refused(tmp_path) == snapshot


def test_the_temporary_folder_lives_as_long_as_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(written("llama", tmp_path)[1])
    folder, tensors = checkpoint.folder, checkpoint.tensors
    assert {file.name for file in folder.iterdir()} == {"config.json", "generation_config.json"}
    del checkpoint
    gc.collect()
    assert folder.is_dir()
    del tensors
    gc.collect()
    assert not folder.exists()


# --- refused ------------------------------------------------------------------------------------


def cut(size: int) -> bytes:
    with TemporaryDirectory() as folder:
        return written("llama", Path(folder))[1].read_bytes()[:size]


def head(version: int, tensors: int, values: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values)


CONTENTS: dict[str, Callable[[], bytes]] = {
    **{
        f"cut to {size}": partial(cut, size) for size in (4, 8, 20, 24, 100, 1000, 2500, 20_000, -4)
    },
    "a page": lambda: b"<!doctype html>",
    **{f"version {version}": partial(head, version, 0, 0) for version in (0, 1, 4, 3 << 24)},
    # Numbers of tensors and of metadata values that the file does not contain.
    **{
        f"{tensors} tensors, {values} values": partial(head, 3, tensors, values)
        for tensors, values in ((1 << 60, 0), (0, 1 << 60), (2, 0), (0, 2))
    },
}


@pytest.mark.parametrize("name", CONTENTS)
def test_an_incomplete_file_is_refused(
    name: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(CONTENTS[name]())
    assert refused(file) == snapshot


def test_a_damaged_header_is_refused_or_read(tmp_path: Path) -> None:
    content, random = written("llama-yarn", tmp_path)[1].read_bytes(), Random(0)
    file, refusals = tmp_path / "damaged.gguf", 0
    for _ in range(100):
        damaged = bytearray(content)
        damaged[random.randrange(4, 2600)] ^= 1 << random.randrange(8)
        file.write_bytes(damaged)
        try:
            assert open_checkpoint(file).opened.tensors
        except CheckpointError:
            refusals += 1
    assert refusals > 10


@pytest.mark.parametrize(("architecture", "split"), [("rwkv6", 1), ("llama", 3)])
def test_an_unknown_architecture_and_a_split_file_are_refused(
    architecture: str, split: int, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", architecture)
    writer.add_uint16("split.count", split)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert refused(tmp_path / "model.gguf") == snapshot


def test_a_format_that_gguf_cannot_dequantize_is_refused(snapshot: SnapshotAssertion) -> None:
    assert refusal(lambda: block_format(4, "blk.0.attn_q.weight", Path("a"))) == snapshot


OTHER_VALUES: list[dict[str, Any]] = [
    {"block_count": 3},
    {"attention.novel": 2},
    {"attention.causal": False},
    {"attention.sliding_window": 16},
    {"attention.max_alibi_bias": 8.0},
    {"attn_logit_softcapping": 30.0},
    {"expert_count": 4, "expert_used_count": 2},
    {"logit_scale": 0.5},
    {"rope.dimension_sections": [0, 2, 2, 0]},
    {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.scaling.attn_factor": 0.5},
]


@pytest.mark.parametrize("change", OTHER_VALUES, ids=str)
def test_values_of_another_model_are_refused(
    change: dict[str, Any], tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    model, file = reference_model(LLAMA), tmp_path / "model.gguf"
    write_gguf(file, "llama", model, metadata_of(model) | change)
    assert refused(file) == snapshot


def test_an_unknown_key_may_be_accepted(tmp_path: Path) -> None:
    model, file = reference_model(LLAMA), tmp_path / "model.gguf"
    write_gguf(file, "llama", model, metadata_of(model) | {"attention.novel": 2})
    assert read_config(file, accept_unknown=["llama.attention.novel"]).model_type == "llama"


LINEAR_BY_2 = {"rope_type": "linear", "factor": 2.0}

NEUTRAL = {
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.scale": 0.0,
    "attention.sliding_window": 0,
    "attention.sliding_window_pattern": 6,
    "attention.key_length_swa": 8,
    "attn_logit_softcapping": 0.0,
    "expert_count": 0,
    "expert_used_count": 2,
    "expert_weights_norm": True,
    "embedding_scale": 1.0,
    "leading_dense_block_count": 0,
    "logit_scale": 1.0,
    "nextn_predict_layers": 0,
    "pooling_type": 0,
    "rope.dimension_sections": [0, 0, 0, 0],
    "rope.scale_linear": 1.0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.factor": 1.0,
    "rope.scaling.type": "linear",
    "swin_norm": False,
}


def test_keys_at_their_neutral_values_change_nothing(tmp_path: Path) -> None:
    model = reference_model(LLAMA)
    plain, neutral = tmp_path / "plain.gguf", tmp_path / "neutral.gguf"
    write_gguf(plain, "llama", model, metadata_of(model))
    write_gguf(neutral, "llama", model, metadata_of(model) | NEUTRAL)
    assert read_config(neutral) == read_config(plain)


def test_absent_types_and_windows_of_0_are_read(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    for arch, change, key, expected in (
        ("llama", {"rope.scaling.factor": 2.0}, "rope_scaling", LINEAR_BY_2),
        ("phi3", {"attention.sliding_window": 0}, "sliding_window", None),
    ):
        model = reference_model(CASES[arch].values)
        write_gguf(file, arch, model, metadata_of(model) | change)
        assert open_checkpoint(file).values[key] == expected
