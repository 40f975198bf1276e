"""Multimodal checkpoints: their language models, and their encoders of images and sounds."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.modeling.tiny_models import assert_same_logits, reference_logits, reference_model
from tests.tiny.decoders import LLAMA
from tests.tiny.encoders import GEMMA3, IDEFICS3, INTERNVL, LLAVA, QWEN3_ASR, QWEN_VISION, SMOLVLM
from transformers import PreTrainedModel

from ortolan.modeling import DecoderModel, EncoderModel, load
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint
from ortolan.modeling.checkpoint.folder import config_from_hf, read_config
from ortolan.modeling.checkpoint.media_tower import media_tower
from ortolan.modeling.checkpoint.text_tower import text_values
from ortolan.modeling.config import (
    ChunkedAudioInput,
    DecoderConfig,
    EncoderConfig,
    FeatureHead,
    PatchInput,
)
from ortolan.modeling.layers.cache import StepLengths, empty_cache
from ortolan.modeling.layers.embeddings import Features

TOKEN = 5
"""Id that stands for a vector."""


def written(folder: Path, values: dict[str, Any]) -> PreTrainedModel:
    model = reference_model(values, architecture=values["architectures"][0])
    model.save_pretrained(folder)
    return model


def both(folder: Path) -> tuple[EncoderModel, DecoderModel]:
    """The encoder and the language model of a folder."""
    checkpoint = open_checkpoint(folder)
    assert checkpoint.media is not None
    assert checkpoint.left_out == ()
    decoder = load(checkpoint)
    assert decoder.config.feature_token_id == TOKEN
    return load(checkpoint.media, EncoderModel), decoder


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.shape == expected.shape
    assert (got - expected).abs().max() <= 1e-4 * expected.abs().max()


# --- the language model alone -------------------------------------------------------------------

MROPE = {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [2, 3, 3]}

QWEN_TOWER = QWEN_VISION | {"embed_dim": 32, "mlp_ratio": 2}

TEXT = {key: value for key, value in LLAMA.items() if key != "model_type"}

TEXTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "mistral3": (
        "Mistral3",
        {"model_type": "mistral"},
        LLAVA["vision_config"] | {"model_type": "pixtral", "head_dim": 16},
    ),
    "llava_onevision": (
        "LlavaOnevision",
        {"model_type": "qwen2"},
        LLAVA["vision_config"] | {"model_type": "siglip_vision_model"},
    ),
    "qwen2_vl": ("Qwen2VL", {"rope_parameters": MROPE}, QWEN_TOWER),
    "qwen2_5_vl": ("Qwen2_5_VL", {"rope_parameters": MROPE}, QWEN_TOWER),
}
"""By `model_type`: prefix of the class, and values of the text and of the images."""


@pytest.mark.parametrize("name", TEXTS)
def test_the_language_model_equals_the_whole_model(name: str, tmp_path: Path) -> None:
    prefix, text, images = TEXTS[name]
    classes = [f"{prefix}ForConditionalGeneration"]
    values = {"text_config": TEXT | text, "vision_config": images, "architectures": classes}
    ids_of_media = {"image_token_id": 5, "image_token_index": 5, "video_token_id": 6}
    model = written(tmp_path, {"model_type": name} | values | ids_of_media)
    ids = torch.arange(7, 30)[None]
    with torch.inference_mode():
        assert_same_logits(load(tmp_path)(ids), reference_logits(model, ids))
    left_out = open_checkpoint(tmp_path).of_text().left_out
    assert left_out
    assert not {"layers", "embed_tokens", "norm", "lm_head"} & set(left_out)


def test_older_configs_mix_values_of_text_and_images() -> None:
    rope = {"type": "mrope", "mrope_section": [16, 24, 24]}
    towers = {"model_type": "qwen2_vl", "vision_config": {}, "image_token_id": 5}
    values = {**TEXT, **towers, "rope_scaling": rope, "rope_theta": 1e6, "architectures": ["A"]}
    changes = {"model_type": "qwen2", "rope_scaling": None, "rope_theta": 1e6}
    assert text_values(values) == TEXT | changes
    assert text_values({"model_type": "llama", "text_config": {}}) is None


# --- images -------------------------------------------------------------------------------------


def internvl(**changes: Any) -> dict[str, Any]:
    return INTERNVL | {"vision_config": INTERNVL["vision_config"] | changes}


SIGLIP = LLAVA["vision_config"] | {"model_type": "siglip_vision_model"}

IMAGES: dict[str, dict[str, Any]] = {
    "clip": LLAVA,
    "clip, an early layer": LLAVA | {"vision_feature_layer": 1},
    "clip, all vectors": LLAVA | {"vision_feature_select_strategy": "full"},
    "siglip, the last layer": LLAVA
    | {"vision_config": SIGLIP, "vision_feature_layer": -1}
    | {"vision_feature_select_strategy": "full"},
    "another projection": LLAVA
    | {"multimodal_projector_bias": False, "projector_hidden_act": "relu"},
    "qwen2": LLAVA | {"text_config": LLAMA | {"model_type": "qwen2"}},
    "idefics3": IDEFICS3,
    "idefics3, all patches": IDEFICS3 | {"scale_factor": 1},
    "smolvlm": SMOLVLM,
    "smolvlm, wide squares": SMOLVLM | {"scale_factor": 4},
    "internvl": INTERNVL,
    "internvl, as in the largest": internvl(
        use_qk_norm=True, norm_type="rms_norm", layer_norm_eps=1e-3
    ),
    "internvl, biases and a last norm": internvl(
        attention_bias=True, use_mean_pooling=False, use_mask_token=True
    ),
    "internvl, an early layer": internvl(use_mean_pooling=False) | {"vision_feature_layer": -2},
    "internvl, without the last norm": internvl(use_mean_pooling=False)
    | {"vision_feature_layer": 2},
    "internvl, all patches": INTERNVL | {"downsample_ratio": 1.0, "projector_hidden_act": "relu"},
    "internvl, wide squares": INTERNVL | {"downsample_ratio": 0.25},
    "internvl, qwen3": INTERNVL | {"text_config": LLAMA | {"model_type": "qwen3"}},
    "internvl, llama": INTERNVL | {"text_config": LLAMA},
    **{
        f"gemma3, {count} vectors": GEMMA3 | {"mm_tokens_per_image": count}
        for count in (1, 4, 16, 64)
    },
}


def pixels_of(model: Any, count: int = 2) -> torch.Tensor:
    """The pixels of images, each of one tile where a model takes tiles."""
    size = 16 if model.config.model_type == "gemma3" else 8
    pixels = torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))
    return pixels[:, None] if hasattr(model.config, "scale_factor") else pixels


def features_of(model: Any) -> torch.Tensor:
    output: Any = model.get_image_features(pixels_of(model))
    return torch.stack(list(getattr(output, "pooler_output", output)))


@pytest.mark.parametrize("name", IMAGES)
def test_images_are_read_as_by_transformers(name: str, tmp_path: Path) -> None:
    model: Any = written(tmp_path, IMAGES[name])
    encoder, decoder = both(tmp_path)
    pixels = pixels_of(model)
    with torch.inference_mode():
        vectors = encoder(pixels.flatten(0, 1) if pixels.ndim == 5 else pixels)
        assert_close(vectors, features_of(model))
        count = vectors.shape[1]
        images = 1 if count == 64 else 2  # within the context
        words, image = [9, 11, 12], [TOKEN] * count
        ids = torch.tensor([[*words, *[*image, *words] * images]])
        features = Features.of(vectors[:images].flatten(0, 1), ids, TOKEN)
        more = {"token_type_ids": (ids == TOKEN).long()} if name.startswith("gemma3") else {}
        whole = model(input_ids=ids, pixel_values=pixels[:images], **more).logits
        logits = decoder(ids, features)
        assert_same_logits(logits, whole)
        assert not torch.allclose(logits, decoder(ids), atol=1e-2)
        cache = empty_cache(decoder.config, batch=1, capacity=ids.shape[1])
        first = StepLengths.first(ids.shape[1])
        assert_same_logits(decoder.step(ids, first, cache, features=features)[0], whole)
        text = torch.tensor([words])
        assert_same_logits(decoder(text), reference_logits(model, text))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("vision_tower.", "model.vision_tower.vision_model."),
        ("language_model.model.", "model.language_model."),
    ],
)
def test_prefixes_of_old_and_new_checkpoints_are_read(old: str, new: str, tmp_path: Path) -> None:
    model = written(tmp_path, LLAVA)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    renamed = {
        f"{new}{name.removeprefix(old)}" if name.startswith(old) else name: tensor
        for name, tensor in tensors.items()
    }
    assert len(renamed.keys() - tensors.keys()) > 15
    save_file(renamed, file)
    encoder, decoder = both(tmp_path)
    ids = torch.arange(7, 20)[None]
    with torch.inference_mode():
        assert_close(encoder(pixels_of(model)), features_of(model))
        assert_same_logits(decoder(ids), reference_logits(model, ids))


def test_old_configs_of_smolvlm_are_read(tmp_path: Path) -> None:
    model = written(tmp_path, IDEFICS3)
    values = json.loads((tmp_path / "config.json").read_text())
    values["vision_config"] |= {
        "model_type": "idefics3",
        "max_image_size": {"longest_edge": 8},
        "size": {"longest_edge": 32},
        "use_base_siglip": False,
    }
    values["text_config"] |= {
        "is_llama_config": True,
        "perceiver_config": {"attention_dropout": 0.0},
        "pixel_shuffle_factor": 4,
        "qk_layer_norms": False,
        "use_resampler": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(values | {"vocab_size": 99}))
    with torch.inference_mode():
        assert_close(both(tmp_path)[0](pixels_of(model)[:, 0]), features_of(model))


TOWERS = Path(__file__).parents[2] / "data" / "published_towers"

PUBLISHED_GEMMA3: dict[str, Any] = json.loads((TOWERS / "gemma-3-4b.json").read_text())


def test_values_that_a_config_leaves_out_are_those_of_transformers() -> None:
    tower, text = media_tower(PUBLISHED_GEMMA3), text_values(PUBLISHED_GEMMA3)
    assert tower is not None
    assert text is not None
    config = config_from_hf(tower.values, EncoderConfig)
    assert isinstance(config.head, FeatureHead)
    assert (config.vectors, config.head.average, len(config.blocks)) == (256, 4, 27)
    assert config.head.projections[0].width == 2560
    decoder = config_from_hf(text | tower.text, DecoderConfig)
    assert (decoder.feature_token_id, decoder.feature_attention) == (262_144, "both_ways")
    tower = media_tower(INTERNVL | {"vision_config": {"hidden_size": 32, "intermediate_size": 48}})
    assert tower is not None
    config = config_from_hf(tower.values, EncoderConfig)
    assert isinstance(config.input, PatchInput)
    assert (config.input.image_size, config.input.patch_size) == ((448, 448), (14, 14))
    assert (len(config.blocks), config.vectors) == (24, 256)


@pytest.mark.parametrize(
    "changes",
    [
        {"vision_feature_layer": [-2, -1]},
        {"vision_feature_layer": 0},
        {"vision_config": LLAVA["vision_config"] | {"model_type": "pixtral"}},
    ],
)
def test_an_encoder_that_is_not_supported_is_left_out(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    written(tmp_path, LLAVA)
    (tmp_path / "config.json").write_text(json.dumps(LLAVA | changes))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.media is None
    assert checkpoint.left_out == ("multi_modal_projector", "vision_tower")
    assert read_config(checkpoint, DecoderConfig).feature_token_id is None


# --- sounds -------------------------------------------------------------------------------------

CHUNK, WINDOW = 100, 300


def padded(mel: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(mel, (0, -mel.shape[1] % CHUNK))


def chunks(mel: torch.Tensor) -> torch.Tensor:
    return padded(mel).reshape(len(mel), -1, CHUNK).transpose(0, 1)


def spectrogram(frames: int) -> torch.Tensor:
    return torch.randn(10, frames, generator=torch.Generator().manual_seed(frames))


def test_sounds_of_any_length_are_read_as_by_transformers(tmp_path: Path) -> None:
    model: Any = written(tmp_path, QWEN3_ASR)
    encoder, decoder = both(tmp_path)
    source = encoder.config.input
    assert isinstance(source, ChunkedAudioInput)
    for frames in (1, 8, 9, 99, 100, 101, 255, 300, 301, 450, 640):
        mel = spectrogram(frames)
        whole, mask = padded(mel)[None], padded(torch.ones(1, frames)).long()
        with torch.inference_mode():
            parts = []
            for window in torch.split(mel, WINDOW, 1):
                count = source.vectors(window.shape[1])
                parts.append(encoder(chunks(window), torch.tensor([count]))[0, :count])
            vectors = torch.cat(parts)
            assert_close(vectors, model.get_audio_features(whole, mask).pooler_output)
            ids = torch.tensor([[7, *[TOKEN] * len(vectors), 9, 11]])
            logits = decoder(ids, Features.of(vectors, ids, TOKEN))
            expected = model(input_ids=ids, input_features=whole, input_features_mask=mask)
            assert_same_logits(logits, expected.logits)
    text = torch.tensor([[7, 9, 11]])
    with torch.inference_mode():
        assert_same_logits(decoder(text), reference_logits(model, text))


def test_chunks_beyond_a_sound_change_nothing(tmp_path: Path) -> None:
    written(tmp_path, QWEN3_ASR)
    encoder, mel = both(tmp_path)[0], chunks(spectrogram(120))
    with torch.inference_mode():
        short = encoder(mel, torch.tensor([16]))
        long = encoder(torch.cat((mel, torch.full_like(mel[:1], 7.0))), torch.tensor([16]))
    torch.testing.assert_close(short[:, :16], long[:, :16])
