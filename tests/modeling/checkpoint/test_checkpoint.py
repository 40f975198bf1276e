"""Complete checkpoint folders: read, written, read again."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from syrupy.assertion import SnapshotAssertion
from tests.modeling.checkpoint.formats import reshape
from tests.modeling.tiny_encoders import CASES, ragged, random_images
from tests.modeling.tiny_models import (
    LLAMA,
    assert_same_logits,
    random_text,
    reference_logits,
    reference_model,
)
from tests.refusals import refusal
from tests.tiny import FAMILY_CONFIGS
from tests.tiny.decoders import GPT2
from transformers import AutoModelForCausalLM, PreTrainedModel

from ortolan.modeling import (
    DecoderModel,
    EncoderDecoderModel,
    EncoderModel,
    TransformerModel,
    load,
    save,
)
from ortolan.modeling.checkpoint.folder import open_weights, read_config
from ortolan.modeling.config import (
    ClassifierHead,
    DecoderConfig,
    EncoderConfig,
    HeadLayer,
    ModelConfig,
    SinusoidalPositions,
)
from ortolan.modeling.models.transformer import build

YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 2.0, "truncate": False}

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 2.0}

MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA | {"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 4},
    "llama-biases-tied": LLAMA
    | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "eos_token_id": 2},
    "llama-gelu-yarn": LLAMA | {"hidden_act": "gelu_new", "rope_parameters": YARN},
    "llama-dynamic": LLAMA | {"rope_parameters": DYNAMIC},
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


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, None) for name in MODELS), ("llama", torch.bfloat16)],
)
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
    if name == "llama":
        config = loaded_by_transformers(tmp_path / "saved").config
        assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, [2, 3], 4)


def with_head(config: EncoderConfig) -> EncoderConfig:
    head = ClassifierHead(labels=("a", "b"), pooling="mean", layer=HeadLayer(activation="tanh"))
    return replace(config, head=head)


UNSAVABLE: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a scale": ("llama", lambda config: replace(config, embedding_scale=2.0)),
    "no last norm": ("llama", lambda config: replace(config, final_norm=None)),
    "norms after": ("llama", lambda config: with_blocks(config, placement="post")),
    "a cap": ("llama", lambda config: with_attention(config, softcap=1.0)),
    "a window": ("llama", lambda config: with_attention(config, sliding_window=4)),
    "another scale": ("llama", lambda config: with_attention(config, scale=1.0)),
    "biases": ("llama", lambda config: with_attention(config, qkv_bias=True)),
    "sinusoids": ("llama", lambda config: replace(config, positions=SinusoidalPositions())),
    "a head": ("bert-classifier", with_head),
    # transformers scales the angles by the length of the input instead.
    "a stretched context": ("llama-dynamic", lambda config: replace(config, context_length=200)),
    "a family that is only read": ("smollm3", lambda config: config),
}


@pytest.mark.parametrize("name", UNSAVABLE)
def test_a_model_that_its_format_cannot_express_is_not_saved(
    name: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    base, change = UNSAVABLE[name]
    values = MODELS.get(base) or FAMILY_CONFIGS.get(base)
    if values is None:
        CASES[base].write(tmp_path / "source")
    else:
        written(values, tmp_path / "source")
    module = build(change(read_config(tmp_path / "source", ModelConfig)))
    assert refusal(lambda: save(module, tmp_path / "saved")) == snapshot
    assert not (tmp_path / "saved").exists()


def with_blocks(config: DecoderConfig, **changes: Any) -> DecoderConfig:
    return replace(config, blocks=tuple(replace(block, **changes) for block in config.blocks))


def with_attention(config: DecoderConfig, **changes: Any) -> DecoderConfig:
    return with_blocks(config, mixer=replace(config.blocks[0].attention, **changes))


def test_saving_over_a_sharded_checkpoint_replaces_it(tmp_path: Path) -> None:
    reference_model(LLAMA).save_pretrained(tmp_path, max_shard_size="20KB")
    module = load(tmp_path)
    with torch.no_grad():
        module.embedding.weight.mul_(2)
    save(module, tmp_path)
    assert torch.equal(load(tmp_path).embedding.weight, module.embedding.weight)


# --- written by transformers, read by us --------------------------------------------------------


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


# --- context ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_a_shorter_context_keeps_the_first_positions(name: str, tmp_path: Path) -> None:
    CASES[name].write(tmp_path)
    short, whole = (load(tmp_path, TransformerModel, max_context=n) for n in (12, None))
    texts = ragged(12, 7)
    inputs = (texts.ids, texts.ids, texts.lengths) if name == "bart" else (texts.ids,)
    with torch.inference_mode():
        assert torch.equal(short(*inputs), whole(*inputs))
    rows = {len(w) for name, w in short.named_parameters() if "position_embedding" in name}
    assert rows == {14 if name == "bart" else 12}


@pytest.mark.parametrize(
    ("name", "context"),
    [
        *((name, context) for name in ("llama", "gpt2", "bart") for context in (0, -1, 97)),
        ("vit", 9),
        ("siglip-text", 40),
    ],
)
def test_a_context_beyond_the_positions_is_refused(
    name: str, context: int, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    CASES[name].write(tmp_path)
    assert refusal(lambda: load(tmp_path, TransformerModel, max_context=context)) == snapshot


def test_dynamic_positions_reach_any_context(tmp_path: Path) -> None:
    written(MODELS["llama-dynamic"], tmp_path)
    assert load(tmp_path, max_context=500).config.context_length == 500


# --- other models and inputs --------------------------------------------------------------------


def test_a_checkpoint_of_another_kind_of_model_is_refused(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    for name, kind in (("t5", EncoderModel), ("bert", EncoderDecoderModel), ("vit", DecoderModel)):
        CASES[name].write(tmp_path / name)
        assert refusal(partial(load, tmp_path / name, kind)) == snapshot


def test_an_image_of_another_size_is_refused(tmp_path: Path) -> None:
    CASES["vit"].write(tmp_path)
    module = load(tmp_path, EncoderModel)
    with pytest.raises(ValueError, match=r"\(3, 8, 8\).*\(3, 8, 6\)"):
        module(random_images(CASES["vit"].values)[..., :6])
