"""The language model of a multimodal checkpoint against the whole model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.modeling import tiny_models
from tests.modeling.checkpoint.refusals import refused, reshape, weight_error
from tests.modeling.tiny_models import (
    assert_same_logits,
    random_text,
    reference_logits,
    reference_model,
)
from transformers import PreTrainedModel

from ortolan.modeling import load
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.checkpoint.text_tower import text_values

IDS = random_text(20)

TEXT = {key: value for key, value in tiny_models.LLAMA.items() if key != "model_type"}

IMAGES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}

QWEN_IMAGES: dict[str, Any] = {
    "depth": 1,
    "embed_dim": 32,
    "hidden_size": 32,
    "num_heads": 2,
    "mlp_ratio": 2,
    "patch_size": 14,
    "intermediate_size": 48,
    "out_hidden_size": 32,
    "deepstack_visual_indexes": [0],
    "num_position_embeddings": 16,
}

QWEN3_5_TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}

LLAMA, QWEN2 = {"model_type": "llama"}, {"model_type": "qwen2"}

MROPE = {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [1, 1, 2]}

SPECIAL = {"image_token_id": 5, "image_token_index": 5, "video_token_id": 6}

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "gemma3": (
        "Gemma3",
        {
            **{"model_type": "gemma3_text", "num_hidden_layers": 6, "head_dim": 16},
            **{"sliding_window": 5, "query_pre_attn_scalar": 16},
        },
        IMAGES | {"model_type": "siglip_vision_model"},
        {"mm_tokens_per_image": 4},
    ),
    "mistral3": (
        "Mistral3",
        {"model_type": "mistral", "head_dim": 8},
        IMAGES | {"model_type": "pixtral", "head_dim": 16},
        {},
    ),
    "llava": ("Llava", LLAMA, IMAGES | {"model_type": "clip_vision_model"}, {}),
    "llava_onevision": (
        "LlavaOnevision",
        QWEN2,
        IMAGES | {"model_type": "siglip_vision_model"},
        {},
    ),
    "idefics3": ("Idefics3", LLAMA, IMAGES, {"scale_factor": 1}),
    "smolvlm": ("SmolVLM", LLAMA, IMAGES, {"scale_factor": 1}),
    "internvl": (
        "InternVL",
        QWEN2,
        IMAGES | {"image_size": [28, 28], "patch_size": [14, 14]},
        {},
    ),
    "qwen2_vl": ("Qwen2VL", {"rope_parameters": MROPE}, QWEN_IMAGES, {}),
    "qwen2_5_vl": ("Qwen2_5_VL", {"rope_parameters": MROPE}, QWEN_IMAGES, {}),
    "qwen3_5": ("Qwen3_5", QWEN3_5_TEXT, QWEN_IMAGES, {}),
    "qwen3_vl": ("Qwen3VL", {"head_dim": 16, "rope_parameters": MROPE}, QWEN_IMAGES, {}),
}
"""By `model_type`: prefix of the class, and values of the text, of the images and of both."""


def written(name: str, folder: Path) -> PreTrainedModel:
    prefix, text, images, both = CASES[name]
    values = {"model_type": name, "text_config": TEXT | text, "vision_config": images, **both}
    architecture = f"{prefix}ForConditionalGeneration"
    model = reference_model(values | SPECIAL, architecture=architecture)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", CASES)
def test_the_language_model_equals_the_whole_model(name: str, tmp_path: Path) -> None:
    model = written(name, tmp_path)
    ours = load(tmp_path)
    ids = IDS.clamp(min=7)  # no ids of images
    with torch.inference_mode():
        assert_same_logits(ours(ids), reference_logits(model, ids))
    left_out = open_checkpoint(tmp_path).of_text().left_out
    assert left_out
    assert not {"layers", "embed_tokens", "norm", "lm_head"} & set(left_out)


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_tensor_names_of_old_and_new_checkpoints_are_read(prefix: str, tmp_path: Path) -> None:
    model = written("llava", tmp_path)
    file = tmp_path / "model.safetensors"
    head = "lm_head." if prefix.startswith("model.") else "language_model.lm_head."
    renamed = {}
    for name, tensor in load_file(file).items():
        for old in ("model.language_model.", "language_model.model."):
            name = f"{prefix}{name.removeprefix(old)}" if name.startswith(old) else name
        for old in ("language_model.lm_head.", "lm_head."):
            name = f"{head}{name.removeprefix(old)}" if name.startswith(old) else name
        renamed[name] = tensor
    assert sum(name.startswith(prefix) for name in renamed) > 15
    save_file(renamed, file)
    ids = IDS.clamp(min=7)
    with torch.inference_mode():
        assert_same_logits(load(tmp_path)(ids), reference_logits(model, ids))


def test_older_configs_mix_values_of_text_and_images() -> None:
    rope = {"type": "mrope", "mrope_section": [16, 24, 24]}
    towers = {"model_type": "qwen2_vl", "vision_config": {}, "image_token_id": 5}
    values = {**TEXT, **towers, "rope_scaling": rope, "rope_theta": 1e6, "architectures": ["A"]}
    assert text_values(values) == {
        **TEXT,
        "model_type": "qwen2",
        "rope_scaling": None,
        "rope_theta": 1e6,
    }


def test_a_model_for_text_only_is_unchanged() -> None:
    assert text_values({"model_type": "llama", "text_config": {}}) is None


def test_an_unknown_language_model_is_refused(tmp_path: Path) -> None:
    written("llava", tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    config["text_config"]["model_type"] = "mpt"
    file.write_text(json.dumps(config))
    message = refused(tmp_path)
    assert "text_config" in message
    assert "'mpt'" in message


def test_a_tensor_of_an_unknown_tower_is_unexpected(tmp_path: Path) -> None:
    written("llava", tmp_path)
    reshape(tmp_path, {"model.novel.weight": (2,)})
    assert "unexpected model.novel.weight" in weight_error(tmp_path)
