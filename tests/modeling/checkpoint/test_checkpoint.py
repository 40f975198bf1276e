"""Complete checkpoint folders: read, written, read again."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.modeling.checkpoint.refusals import edit, reshape
from tests.modeling.tiny_encoders import ENCODERS, IMAGES, SEQ2SEQ, EncoderCase
from tests.modeling.tiny_models import (
    LLAMA,
    MISTRAL,
    QWEN2,
    STABLELM,
    assert_same_logits,
    random_text,
    reference_logits,
    reference_model,
)
from tests.tiny.decoders import GPT2
from transformers import AutoModelForCausalLM, PreTrainedModel

from ortolan.modeling import (
    ConfigError,
    DecoderModel,
    TransformerModel,
    WeightError,
    load,
    save,
)
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.checkpoint.folder import open_weights, read_config
from ortolan.modeling.config import DecoderConfig, ModelConfig, SinusoidalPositions
from ortolan.modeling.weights import ModuleWeights

YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 2.0, "truncate": False}

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 2.0}

MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA | {"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 4},
    "llama-biases-tied": LLAMA
    | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "eos_token_id": 2},
    "llama-gelu-yarn": LLAMA | {"hidden_act": "gelu_new", "rope_parameters": YARN},
    "llama-dynamic": LLAMA | {"rope_parameters": DYNAMIC},
    "gpt2": GPT2 | {"n_inner": 40, "bos_token_id": 5, "eos_token_id": 5},
    "gpt2-untied-unscaled": GPT2 | {"tie_word_embeddings": False, "scale_attn_weights": False},
    "mistral": MISTRAL | {"sliding_window": 5, "head_dim": 16},
    "mistral-unwindowed": MISTRAL,
    "qwen2": QWEN2,
    "qwen2-windowed": QWEN2
    | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "stablelm": STABLELM,
}

IDS = random_text(24)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkpoint written by transformers."""
    return written(LLAMA, tmp_path / "source")


def written(values: dict[str, Any], folder: Path) -> Path:
    reference_model(values).save_pretrained(folder)
    return folder


def loaded_by_transformers(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return model


# --- written by us, read by transformers --------------------------------------------------------


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["as-it-is", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_transformers_reads_what_we_write(
    name: str, dtype: torch.dtype | None, tmp_path: Path
) -> None:
    module = load(written(MODELS[name], tmp_path / "source"))
    save(module, tmp_path / "saved", dtype=dtype)
    again = load(tmp_path / "saved")

    assert again.config == module.config
    with torch.inference_mode():
        expected = reference_logits(loaded_by_transformers(tmp_path / "saved"), IDS)
        assert_same_logits(again(IDS), expected)
        if dtype is None:
            assert torch.equal(again(IDS), module(IDS))
    tensors = load_file(tmp_path / "saved/model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {dtype or torch.float32}
    assert json.loads((tmp_path / "saved/config.json").read_text())["dtype"] == (
        "float32" if dtype is None else "bfloat16"
    )


def test_a_saved_checkpoint_has_its_special_tokens(tmp_path: Path) -> None:
    save(load(written(MODELS["llama"], tmp_path / "source")), tmp_path / "saved")
    config = loaded_by_transformers(tmp_path / "saved").config
    assert config.bos_token_id == 1
    assert config.eos_token_id == [2, 3]
    assert config.pad_token_id == 4


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda config: replace(config, embedding_scale=2.0), "embedding_scale"),
        (lambda config: replace(config, final_norm=None), "final_norm"),
        (lambda config: with_blocks(config, placement="post"), "blocks"),
        (lambda config: with_attention(config, softcap=1.0), "blocks"),
        (lambda config: with_attention(config, sliding_window=4), "blocks"),
        (lambda config: with_attention(config, scale=1.0), "blocks"),
        (lambda config: with_attention(config, qkv_bias=True), "blocks"),
        (lambda config: replace(config, positions=SinusoidalPositions()), "rotary positions"),
    ],
)
def test_a_model_that_its_format_cannot_express_is_not_saved(
    change: Callable[[DecoderConfig], DecoderConfig], field: str, tmp_path: Path
) -> None:
    config = read_config(written(LLAMA, tmp_path / "source"))
    with pytest.raises(ConfigError, match=field):
        save(DecoderModel(change(config)), tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def with_blocks(config: DecoderConfig, **changes: Any) -> DecoderConfig:
    return replace(config, blocks=tuple(replace(block, **changes) for block in config.blocks))


def with_attention(config: DecoderConfig, **changes: Any) -> DecoderConfig:
    return with_blocks(config, mixer=replace(config.blocks[0].attention, **changes))


def test_different_layers_are_saved_if_the_format_allows(tmp_path: Path) -> None:
    qwen2 = QWEN2 | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}
    config = read_config(written(qwen2, tmp_path / "source"))
    save(DecoderModel(config), tmp_path / "saved")
    windows = [b.attention.sliding_window for b in read_config(tmp_path / "saved").blocks]
    assert windows == [None, None, 5]
    wider = replace(config.blocks[0].attention, sliding_window=9)
    mixed = (replace(config.blocks[0], mixer=wider), *config.blocks[1:])
    with pytest.raises(ConfigError, match="blocks"):
        save(DecoderModel(replace(config, blocks=mixed)), tmp_path / "mixed")


def test_saving_over_a_sharded_checkpoint_replaces_it(tmp_path: Path) -> None:
    reference_model(LLAMA).save_pretrained(tmp_path, max_shard_size="20KB")
    module = load(tmp_path)
    with torch.no_grad():
        module.embedding.weight.mul_(2)
    save(module, tmp_path)
    assert torch.equal(load(tmp_path).embedding.weight, module.embedding.weight)


# --- written by transformers, read by us --------------------------------------------------------


def test_a_sharded_checkpoint_equals_the_whole(source: Path, tmp_path: Path) -> None:
    reference_model(LLAMA).save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    with torch.inference_mode():
        assert torch.equal(load(tmp_path / "sharded")(IDS), load(source)(IDS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_of_every_precision_become_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    reference = reference_model(LLAMA).to(dtype)  # type: ignore[arg-type]
    reference.save_pretrained(tmp_path)
    module = load(tmp_path)
    assert {p.dtype for p in module.parameters()} == {torch.float32}
    assert not module.training
    stored = open_weights(tmp_path, module.config)
    assert stored.rows("embedding.weight", 0, 1).dtype == dtype
    with torch.inference_mode():
        assert_same_logits(module(IDS), reference_logits(loaded_by_transformers(tmp_path), IDS))


@pytest.mark.parametrize("values", [LLAMA | {"tie_word_embeddings": True}, GPT2])
def test_a_base_model_without_prefix_and_head_is_read(
    values: dict[str, Any], tmp_path: Path
) -> None:
    reference = reference_model(values)
    reference.base_model.save_pretrained(tmp_path)  # type: ignore[operator]
    names = load_file(tmp_path / "model.safetensors")
    assert not any(name.startswith(("model.", "transformer.", "lm_head")) for name in names)
    with torch.inference_mode():
        assert_same_logits(load(tmp_path)(IDS), reference_logits(reference, IDS))


def test_a_base_model_without_the_head_it_needs_is_an_error(tmp_path: Path) -> None:
    reference_model(LLAMA).base_model.save_pretrained(tmp_path)  # type: ignore[operator]
    with pytest.raises(WeightError, match=r"missing lm_head\.weight"):
        load(tmp_path)


def test_weights_that_old_versions_saved_are_dropped(tmp_path: Path) -> None:
    gpt2, llama = written(GPT2, tmp_path / "gpt2"), written(LLAMA, tmp_path / "llama")
    expected = [load(gpt2), load(llama)]
    attention = [f"transformer.h.{layer}.attn" for layer in range(2)]
    reshape(gpt2, {f"{name}.bias": (1, 1, 8, 8) for name in attention})
    reshape(gpt2, {f"{name}.masked_bias": () for name in attention})
    reshape(llama, {"model.layers.1.self_attn.rotary_emb.inv_freq": (4,)})
    with torch.inference_mode():
        for folder, module in zip((gpt2, llama), expected, strict=True):
            assert torch.equal(load(folder)(IDS), module(IDS))


def test_a_copy_of_a_tied_embedding_must_equal_it(tmp_path: Path) -> None:
    folder = written(LLAMA | {"tie_word_embeddings": True}, tmp_path)
    expected = load(folder)
    table = "model.embed_tokens.weight"
    edit(folder, lambda tensors: tensors.update({"lm_head.weight": tensors[table].clone()}))
    with torch.inference_mode():
        assert torch.equal(load(folder)(IDS), expected(IDS))
    edit(folder, lambda tensors: tensors.update({"lm_head.weight": tensors[table] * 2}))
    with pytest.raises(WeightError, match=r"lm_head\.weight: .*embedding"):
        load(folder)


COPIES = {
    "t5": (SEQ2SEQ["t5"], "shared", ("encoder.embed_tokens", "decoder.embed_tokens")),
    "t5, one side": (SEQ2SEQ["t5"], "shared", ("decoder.embed_tokens",)),
    "t5-encoder": (ENCODERS["t5-encoder"], "shared", ("encoder.embed_tokens",)),
    "bart": (SEQ2SEQ["bart"], "model.shared", ("model.encoder.embed_tokens",)),
    "llama": (
        EncoderCase("LlamaForCausalLM", LLAMA | {"tie_word_embeddings": True}),
        "model.embed_tokens",
        ("lm_head",),
    ),
}
"""A shared tensor, and the other names under which alone a checkpoint may store it."""


@pytest.mark.parametrize("name", COPIES)
def test_a_shared_tensor_may_be_stored_under_its_other_names_alone(
    name: str, tmp_path: Path
) -> None:
    case, original, copies = COPIES[name]
    case.write(tmp_path)
    expected = load(tmp_path, TransformerModel).state_dict()

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        values = tensors.pop(f"{original}.weight")
        tensors.update({f"{copy}.weight": values.clone() for copy in copies})

    edit(tmp_path, rename)
    loaded = load(tmp_path, TransformerModel).state_dict()
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(values, expected[name]) for name, values in loaded.items())
    theirs: Any = case.read(tmp_path).get_input_embeddings().weight
    assert any(torch.equal(values, theirs) for values in loaded.values())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_stays_mapped(source: Path) -> None:
    module = load(source)
    weights = open_weights(source, module.config)
    row = weights.rows("embedding.weight", 3, 4)
    assert str(source) not in Path("/proc/self/maps").read_text()
    assert row.untyped_storage().nbytes() == row.numel() * 4, "the slice keeps the whole alive"


# --- slices -------------------------------------------------------------------------------------


ROWS = {
    "packed": EncoderCase("LlamaForCausalLM", LLAMA),
    "transposed": EncoderCase("GPT2LMHeadModel", GPT2),
    "roberta-masked": ENCODERS["roberta-masked"],
    "vit-classifier": IMAGES["vit-classifier"],
    **{name: SEQ2SEQ[name] for name in ("bart", "t5", "marian")},
}


@pytest.mark.parametrize("name", ROWS)
def test_any_rows_are_the_rows_of_the_whole(name: str, tmp_path: Path) -> None:
    ROWS[name].write(tmp_path)
    module = load(tmp_path, TransformerModel)
    stored = open_weights(tmp_path, read_config(tmp_path, ModelConfig))
    live = ModuleWeights(module)
    for weight, parameter in module.named_parameters():
        rows = len(parameter)
        assert stored.shape(weight) == live.shape(weight) == tuple(parameter.shape)
        for start, stop in [(0, rows), (0, 1), (rows - 1, rows), (rows // 3, 2 * rows // 3 + 1)]:
            assert torch.equal(stored.rows(weight, start, stop), parameter[start:stop])
            assert torch.equal(live.rows(weight, start, stop), parameter[start:stop])


# --- context ------------------------------------------------------------------------------------


def test_a_shorter_context_needs_fewer_positions(tmp_path: Path) -> None:
    module = load(written(GPT2, tmp_path), max_context=30)
    assert module.config.context_length == 30
    assert module.position_embedding is not None
    assert len(module.position_embedding.weight) == 30


@pytest.mark.parametrize("values", [LLAMA, GPT2])
@pytest.mark.parametrize("context", [0, -1, 97])
def test_a_context_beyond_the_positions_is_an_error(
    values: dict[str, Any], context: int, tmp_path: Path
) -> None:
    written(values, tmp_path)
    with pytest.raises(ConfigError, match=f"max_context .*96.* {context}"):
        load(tmp_path, max_context=context)


def test_dynamic_positions_reach_any_context(tmp_path: Path) -> None:
    written(LLAMA | {"rope_parameters": DYNAMIC}, tmp_path)
    assert load(tmp_path, max_context=500).config.context_length == 500
    with pytest.raises(ConfigError, match="max_context"):
        load(tmp_path, max_context=0)


def test_a_stretched_context_cannot_be_written(tmp_path: Path) -> None:
    # transformers scales the angles by the length of the input instead.
    written(LLAMA | {"rope_parameters": DYNAMIC}, tmp_path / "source")
    with pytest.raises(ConfigError, match="context_length"):
        save(load(tmp_path / "source", max_context=200), tmp_path / "saved")


# --- identity -----------------------------------------------------------------------------------


def test_the_hash_of_a_checkpoint_covers_every_byte(source: Path, tmp_path: Path) -> None:
    digest = open_checkpoint(source).sha256()
    assert re.fullmatch("[0-9a-f]{64}", digest)
    assert digest == open_checkpoint(written(LLAMA, tmp_path / "again")).sha256()
    weights = source / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    changed = open_checkpoint(source).sha256()
    assert changed != digest
    config = source / "config.json"
    config.write_text(config.read_text() + " ")
    assert open_checkpoint(source).sha256() not in {digest, changed}
