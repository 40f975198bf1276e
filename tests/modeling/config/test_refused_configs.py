"""Files called config.json that are torn, hostile, or of a model that Ortolan does not compute."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.modeling.families.test_published_configs import PUBLISHED
from tests.modeling.tiny_models import LLAMA
from tests.refusals import named_rows, refusal
from tests.tiny import FAMILY_CONFIGS

from ortolan.modeling import read_config
from ortolan.modeling.checkpoint.checkpoint import MAX_CONFIG_BYTES
from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.checkpoint.media_tower import media_tower
from ortolan.modeling.checkpoint.text_tower import text_values
from ortolan.modeling.config import EncoderConfig, EncoderDecoderConfig, ModelConfig
from ortolan.modeling.families import FAMILIES, family_of

# --- files --------------------------------------------------------------------------------------

FILES: dict[str, bytes | None] = {
    "absent": None,
    "empty": b"",
    "torn": b'{"model_type": "lla',
    "not text": b"\xff\xfe",
    "a deep list": b"[" * 100_000,
    "a deep object": b'{"a":' * 100_000,
    "a long number": b'{"vocab_size": ' + b"9" * 5000 + b"}",
    "null": b"null",
    "a text": b'"llama"',
    "huge": b" " * (MAX_CONFIG_BYTES + 1),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_object_is_refused(
    name: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    content = FILES[name]
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    assert refusal(lambda: read_config(tmp_path), tmp_path) == snapshot


# --- values -------------------------------------------------------------------------------------

Changes = Mapping[str, Any]


def changed_first(base: Changes, **changes: Any) -> dict[str, Any]:
    """A config whose changes come first, since the name of a row begins with them."""
    return changes | {key: value for key, value in base.items() if key not in changes}


LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}

LINEAR = {"rope_type": "linear", "factor": 2.0}

ROPES: list[dict[str, Any]] = [
    {"rope_type": "mrope", "factor": 2.0},
    {"rope_type": "proportional"},
    {"rope_type": "su", "factor": 2.0},
    changed_first(LONGROPE, short_factor=[1.0] * 3),
    changed_first(LONGROPE, long_factor=[0.0] * 4),
    changed_first(LONGROPE, long_factor=["1"] * 4),
    changed_first(LONGROPE, original_max_position_embeddings=1),
    {"rope_type": "linear"},
    changed_first(LINEAR, factor="2"),
    changed_first(LINEAR, factor=0.0),
    changed_first(LINEAR, factor=float("nan")),
    changed_first(LINEAR, alpha=1),
    {"rope_type": "default", "mrope_section": [1]},
    {"rope_type": "llama3", "factor": 2.0},
    changed_first(LLAMA3, low_freq_factor=4.0),
    changed_first(YARN, beta_slow=0.0),
    changed_first(YARN, original_max_position_embeddings=0),
    changed_first(YARN, attention_factor=0.0),
    changed_first(YARN, mscale=-100.0, mscale_all_dim=1.0),
    {"rope_type": "default", "partial_rotary_factor": 0.0},
    {"rope_type": "default", "partial_rotary_factor": 1e308},
    {"rope_type": "default", "rope_theta": 1.0},
    {"rope_type": "default", "rope_theta": -1.0},
]

CLASSIFIER = {"architectures": ["BertForSequenceClassification"]}


def applied(function: str) -> dict[str, Any]:
    """What sentence-transformers says of the function that it applies to logits."""
    return {"sentence_transformers": {"activation_fn": function}}


LABELS: list[dict[str, Any]] = [
    *(
        {"id2label": labels}
        for labels in (
            {},
            {"1": "a", "2": "b"},
            {"a": "b"},
            {"0": "a", "1": None},
            {"00": "a", "0": "b", "2": "c"},
        )
    ),
    {"problem_type": "tagging"},
    {"problem_type": "single_label_classification", "num_labels": 1},
    {"function_to_apply": "none"},
    {"function_to_apply": "sigmoid", "problem_type": "regression"},
    applied("torch.nn.Tanh"),
    applied("mine.Sigmoid"),
    {"num_labels": 1} | applied("torch.nn.Softmax"),
]

NEO_TYPES: dict[str, object] = {"attention_layers": None}
"""For a config of GPT-Neo that does not list the kinds of its layers."""

SST2 = "distilbert-base-uncased-finetuned-sst-2-english"

VALUES: dict[str, list[Changes]] = {
    "llama": [
        {"model_type": "zamba2"},
        {"model_type": None},
        {"model_type": ["llama"]},
        {"attention_sinks": 4},
        {"a": 1, "b": 2},
        {"add_cross_attention": True},
        *({"hidden_size": value} for value in ("32", 32.0, True, None, 0)),
        {"vocab_size": -5},
        {"vocab_size": 10**30},
        {"num_attention_heads": 0},
        {"num_attention_heads": 64},
        {"num_key_value_heads": 0},
        {"num_key_value_heads": 3},
        {"num_hidden_layers": 0},
        {"num_hidden_layers": 10**9},
        {"max_position_embeddings": 10**12},
        {"head_dim": 5},
        {"rms_norm_eps": float("nan")},
        {"rms_norm_eps": 10**400},
        {"rms_norm_eps": "1e-5"},
        {"tie_word_embeddings": 1},
        {"hidden_act": "xielu"},
        {"eos_token_id": "</s>"},
        {"eos_token_id": [1, True]},
        {"bos_token_id": [1]},
        {"partial_rotary_factor": 0.5},
        {"rope_interleaved": True},
        {"rope_scaling": "linear"},
        {"rope_scaling": LINEAR, "rope_parameters": {"rope_type": "dynamic", "factor": 3.0}},
        {"head_dim": 2, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        *({"rope_scaling": rope} for rope in ROPES),
    ],
    "qwen2": [
        {"use_mrope": True},
        {"layer_types": ["full_attention"]},
        {"layer_types": ["x", "y"]},
        {"layer_types": [["x"], {}]},
    ],
    "mistral": [{"sliding_window": 0}],
    "gpt2": [{"n_head": 5}, {"n_head": 1536}, {"activation_function": "gelu_fast"}],
    "deepseek_v2": [
        {"topk_method": "group_limited_greedy"},
        {"scoring_func": "sigmoid"},
        {"norm_topk_prob": True},
    ],
    "glm4_moe_lite": [{"mlp_layer_types": ["dense", "other"]}],
    "deepseek_v3": [{"num_key_value_heads": 1}, {"kv_lora_rank": None}],
    # transformers would not cap the scores.
    "gemma-3-1b": [{"attn_logit_softcapping": 50.0}],
    "c4ai-command-r7b": [
        {"use_qk_norm": True},
        {"use_parallel_block": False},
        {"use_gated_activation": False},
    ],
    "gpt-neo-125m": [
        NEO_TYPES | {"attention_types": [[["global"], 3]]},
        NEO_TYPES | {"attention_types": [[["sparse"], 12]]},
        NEO_TYPES | {"attention_types": [3]},
        {"attention_layers": ["global"]},
    ],
    "gpt-j-6b": [{"n_head": 15}],
    "codegen-350m": [{"n_head": 2}],
    "falcon-40b": [{"parallel_attn": False}],
    "mpt-7b": [
        {"expansion_ratio": 2},
        {"logit_scale": 0.5},
        {"no_bias": False},
        {"attn_config": {"alibi": False}},
        {"attn_config": {"alibi_bias_max": 16}},
        {"attn_config": {"kv_n_heads": 8}},
    ],
    "stablelm-2-1_6b": [{"qk_layernorm": True}],
    "bert-base-uncased": [
        {"architectures": None},
        {"architectures": ["BertForMultipleChoice"]},
        {"position_embedding_type": "relative_key"},
        {"is_decoder": True},
        {"add_cross_attention": True},
        {"tie_word_embeddings": False},
        {"num_attention_heads": 7},
        {"rotary_dim": 4},
        *(changed_first(CLASSIFIER, **labels) for labels in LABELS),
        {"architectures": ["BertForTokenClassification"], "num_labels": 1},
        {"architectures": ["BertForQuestionAnswering"], "num_labels": 3},
    ],
    "roberta-base": [{"max_position_embeddings": 2}, {"type_vocab_size": "1"}],
    SST2: [{"n_heads": 5}],
    "vit-base-patch16-224": [
        {"image_size": [224]},
        {"patch_size": [16, "x"]},
        {"patch_size": 300},
        {"num_attention_heads": 5},
    ],
    "dinov2_with_registers": [{"image_size": [8, 12]}, {"num_register_tokens": -1}],
    "dinov3_vit": [
        {"num_register_tokens": 1 << 20},
        {"key_bias": True},
        {"value_bias": False},
        {"num_attention_heads": 16},
        {"rope_theta": 1.0},
    ],
    "clip": [
        {part: FAMILY_CONFIGS["clip"][part] | {"attention_sinks": 4}, "model_type": model_type}
        for part, model_type in (("text_config", "clip_text_model"), ("vision_config", "clip"))
    ],
    "siglip": [
        {
            "architectures": ["SiglipModel"],
            "vision_config": FAMILY_CONFIGS["siglip"]["vision_config"] | {"vision_use_head": False},
        }
    ],
    "opus-mt-en-de": [
        {"normalize_before": True},
        {"static_position_embeddings": False},
        {"decoder_vocab_size": 7},
        {"decoder_start_token_id": None},
        {"encoder_attention_heads": 7},
    ],
    "bart-base": [
        {"normalize_embedding": False},
        {"architectures": ["BartForSequenceClassification"]},
        {"tie_word_embeddings": False},
    ],
    "t5-small": [
        {"feed_forward_proj": "double-gelu"},
        {"feed_forward_proj": "gated-xielu"},
        {"relative_attention_num_buckets": 3},
        {"is_encoder_decoder": False},
    ],
    "nomic-embed-text-v1.5": [
        {"prenorm": True},
        {"rotary_emb_fraction": 0.5},
        {"rotary_emb_scale_base": 512.0},
        {"rotary_scaling_factor": 2.0},
        {"scale_attn_weights": False},
    ],
    "xglm": [{"pad_token_id": 2}],
    # Routing weights would reach it.
    "ernie4_5_moe": [{"moe_norm_min": 0.5}],
    "nomic_bert": [{"activation_function": name} for name in ("geglu", "gelu")],
    "wav2vec2": [
        {"add_adapter": True},
        {"adapter_attn_dim": 16},
        {"feat_extract_norm": "batch"},
        {"conv_dim": [16, 16]},
        {"conv_stride": [4, 0, 2]},
        {"conv_kernel": []},
        {"conv_kernel": [5, 3, "2"]},
        {"num_attention_heads": 3},
        {"num_attention_heads": 8},
        {"num_conv_pos_embedding_groups": 5},
        {"feat_extract_activation": "selu"},
        {"conv_pos_batch_norm": True},
        {"feat_proj_layer_norm": False},
        {"position_embeddings_type": "rotary"},
        {"architectures": ["Wav2Vec2ForXVector"]},
    ],
    "moonshine": [
        {"decoder_num_attention_heads": 4},
        {"encoder_num_key_value_heads": 1},
        {"hidden_size": 37},
        {"partial_rotary_factor": 0.5},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"decoder_hidden_act": "selu"},
        {"tie_word_embeddings": False},
        {"head_dim": 24},
        {"sliding_windows": [[16, 4]]},
        {"architectures": ["MoonshineModel"]},
    ],
}
"""Changes that make another model of a published config, or of a family's tiny one."""

TOWERS: dict[str, list[Changes]] = {
    "llava": [{"vision_feature_select_strategy": "x"}],
    "idefics3": [{"scale_factor": 3}],
    "gemma3": [{"mm_tokens_per_image": count} for count in (3, 5, 9, 100)],
    "internvl": [
        {"downsample_ratio": 0.3},
        {"downsample_ratio": 0.0},
        {"downsample_ratio": 1 / 3},
        {"vision_feature_select_strategy": "full"},
        {"unknown_switch": True},
        {"vision_config": {"image_size": [8, 16]}},
        {"vision_config": {"norm_type": "batch_norm"}},
        {"vision_config": {"use_absolute_position_embeddings": False}},
        {"vision_config": {"unknown_switch": True}},
    ],
    "qwen3_vl": [
        {"vision_config": {"out_hidden_size": 64}},
        {"vision_config": {"num_position_embeddings": 35}},
        {"vision_config": {"num_heads": 3}},
        {"vision_config": {"deepstack_visual_indexes": [2, 0]}},
        {"vision_config": {"deepstack_visual_indexes": [0, 9]}},
    ],
    "qwen3_asr": [
        {"audio_config": {"n_window_infer": 250}},
        {"audio_config": {"max_position_embeddings": 12}},
        {"audio_config": {"conv_chunksize": 500}},
    ],
}
"""Changes of the encoder of images or sounds of a multimodal model."""


LANGUAGE: dict[str, list[Changes]] = {
    "qwen3_vl": [
        {"vision_config": {"deepstack_visual_indexes": [0, 1, 2]}},
        {"text_config": {"rope_parameters": {"rope_type": "default", "mrope_section": [4]}}},
    ],
    "llava": [{"text_config": {"model_type": "mpt"}}],
}
"""Changes of a multimodal model that its language model does not have, or cannot compute."""

PARTS = ("vision_config", "audio_config", "text_config")


def changed(name: str, changes: Changes) -> dict[str, Any]:
    """A config with changes; those of its parts are merged into them."""
    base = LLAMA if name == "llama" else PUBLISHED.get(name) or FAMILY_CONFIGS[name]
    inner = {key: base[key] | value for key, value in changes.items() if key in PARTS}
    return {**base, **changes, **inner}


COUNT = f"{len(FAMILIES)} families"

VALUE_ROWS, TOWER_ROWS, LANGUAGE_ROWS = map(named_rows, (VALUES, TOWERS, LANGUAGE))


@pytest.mark.parametrize("row", VALUE_ROWS)
def test_a_config_of_another_model_is_refused(row: str, snapshot: SnapshotAssertion) -> None:
    values = changed(*VALUE_ROWS[row])
    assert refusal(lambda: config_from_hf(values, ModelConfig), COUNT) == snapshot


@pytest.mark.parametrize("row", TOWER_ROWS)
def test_another_encoder_of_media_is_refused(row: str, snapshot: SnapshotAssertion) -> None:
    tower = media_tower(changed(*TOWER_ROWS[row]))
    assert tower is not None
    assert refusal(lambda: config_from_hf(tower.values, EncoderConfig)) == snapshot


@pytest.mark.parametrize("row", LANGUAGE_ROWS)
def test_another_language_model_of_media_is_refused(row: str, snapshot: SnapshotAssertion) -> None:
    def read() -> object:
        values = changed(*LANGUAGE_ROWS[row])
        tower, text = media_tower(values), text_values(values)
        assert tower is not None
        assert text is not None
        return config_from_hf(text | tower.text)

    assert refusal(read) == snapshot


def test_a_model_of_another_kind_and_an_unknown_family_are_refused(
    snapshot: SnapshotAssertion,
) -> None:
    assert refusal(lambda: config_from_hf(PUBLISHED["bert-base-uncased"])) == snapshot
    assert refusal(lambda: config_from_hf(PUBLISHED["t5-small"])) == snapshot
    assert refusal(lambda: config_from_hf(PUBLISHED["gpt2"], EncoderDecoderConfig)) == snapshot
    assert refusal(lambda: family_of("gpt-2"), COUNT) == snapshot
    assert refusal(lambda: family_of("zzz"), COUNT) == snapshot
