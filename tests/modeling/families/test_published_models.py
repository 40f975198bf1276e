"""Encoders and encoder-decoders as they were published: their configs and their sizes."""

import contextlib
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig

from ortolan.modeling import ConfigError, EncoderConfig, EncoderDecoderConfig, ModelConfig
from ortolan.modeling.checkpoint.folder import config_from_hf, empty_model
from ortolan.modeling.config import (
    ClassifierHead,
    LearnedPositions,
    RelativeBiasPositions,
    SinusoidalPositions,
)
from ortolan.modeling.families import published_config

OPUS_MT: dict[str, Any] = {
    "_num_labels": 3,
    "activation_dropout": 0.0,
    "activation_function": "swish",
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "architectures": ["MarianMTModel"],
    "attention_dropout": 0.0,
    "bad_words_ids": [[58100]],
    "bos_token_id": 0,
    "classif_dropout": 0.0,
    "classifier_dropout": 0.0,
    "d_model": 512,
    "decoder_attention_heads": 8,
    "decoder_ffn_dim": 2048,
    "decoder_layerdrop": 0.0,
    "decoder_layers": 6,
    "decoder_start_token_id": 58100,
    "decoder_vocab_size": 58101,
    "dropout": 0.1,
    "encoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "encoder_layerdrop": 0.0,
    "encoder_layers": 6,
    "eos_token_id": 0,
    "forced_eos_token_id": 0,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
    "init_std": 0.02,
    "is_encoder_decoder": True,
    "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
    "max_length": 512,
    "max_position_embeddings": 512,
    "model_type": "marian",
    "normalize_before": False,
    "normalize_embedding": False,
    "num_beams": 6,
    "num_hidden_layers": 6,
    "pad_token_id": 58100,
    "scale_embedding": True,
    "share_encoder_decoder_embeddings": True,
    "static_position_embeddings": True,
    "transformers_version": "4.22.0.dev0",
    "use_cache": True,
    "vocab_size": 58101,
}

BART_BASE: dict[str, Any] = {
    "activation_dropout": 0.1,
    "activation_function": "gelu",
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "architectures": ["BartModel"],
    "attention_dropout": 0.1,
    "bos_token_id": 0,
    "classif_dropout": 0.1,
    "classifier_dropout": 0.0,
    "d_model": 768,
    "decoder_attention_heads": 12,
    "decoder_ffn_dim": 3072,
    "decoder_layerdrop": 0.0,
    "decoder_layers": 6,
    "decoder_start_token_id": 2,
    "dropout": 0.1,
    "early_stopping": True,
    "encoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
    "encoder_layerdrop": 0.0,
    "encoder_layers": 6,
    "eos_token_id": 2,
    "forced_bos_token_id": 0,
    "forced_eos_token_id": 2,
    "gradient_checkpointing": False,
    "init_std": 0.02,
    "is_encoder_decoder": True,
    "max_position_embeddings": 1024,
    "model_type": "bart",
    "no_repeat_ngram_size": 3,
    "normalize_before": False,
    "normalize_embedding": True,
    "num_beams": 4,
    "num_hidden_layers": 6,
    "pad_token_id": 1,
    "scale_embedding": False,
    "task_specific_params": {"summarization": {"length_penalty": 1.0}},
    "transformers_version": "4.12.0.dev0",
    "use_cache": True,
    "vocab_size": 50265,
}

T5_SMALL: dict[str, Any] = {
    "architectures": ["T5ForConditionalGeneration"],
    "d_ff": 2048,
    "d_kv": 64,
    "d_model": 512,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06,
    "model_type": "t5",
    "n_positions": 512,
    "num_heads": 8,
    "num_layers": 6,
    "output_past": True,
    "pad_token_id": 0,
    "relative_attention_num_buckets": 32,
    "task_specific_params": {"translation_en_to_fr": {"prefix": "translate English to French: "}},
    "vocab_size": 32128,
}

FLAN_T5_SMALL = T5_SMALL | {
    "d_ff": 1024,
    "feed_forward_proj": "gated-gelu",
    "num_decoder_layers": 8,
    "num_heads": 6,
    "num_layers": 8,
    "relative_attention_max_distance": 128,
    "tie_word_embeddings": False,
}

BERT_BASE: dict[str, Any] = {
    "architectures": ["BertForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "transformers_version": "4.6.0.dev0",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 30522,
}

ROBERTA_BASE = BERT_BASE | {
    "architectures": ["RobertaForMaskedLM"],
    "bos_token_id": 0,
    "eos_token_id": 2,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 514,
    "model_type": "roberta",
    "pad_token_id": 1,
    "type_vocab_size": 1,
    "vocab_size": 50265,
}

DISTILBERT_SST2: dict[str, Any] = {
    "activation": "gelu",
    "architectures": ["DistilBertForSequenceClassification"],
    "attention_dropout": 0.1,
    "dim": 768,
    "dropout": 0.1,
    "finetuning_task": "sst-2",
    "hidden_dim": 3072,
    "id2label": {"0": "NEGATIVE", "1": "POSITIVE"},
    "initializer_range": 0.02,
    "label2id": {"NEGATIVE": 0, "POSITIVE": 1},
    "max_position_embeddings": 512,
    "model_type": "distilbert",
    "n_heads": 12,
    "n_layers": 6,
    "output_past": True,
    "pad_token_id": 0,
    "qa_dropout": 0.1,
    "seq_classif_dropout": 0.2,
    "sinusoidal_pos_embds": False,
    "tie_weights_": True,
    "vocab_size": 30522,
}

VIT_BASE: dict[str, Any] = {
    "architectures": ["ViTForImageClassification"],
    "attention_probs_dropout_prob": 0.0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "hidden_size": 768,
    "id2label": {str(i): f"name {i}" for i in range(1000)},
    "image_size": 224,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "label2id": {f"name {i}": i for i in range(1000)},
    "layer_norm_eps": 1e-12,
    "model_type": "vit",
    "num_attention_heads": 12,
    "num_channels": 3,
    "num_hidden_layers": 12,
    "patch_size": 16,
    "qkv_bias": True,
    "transformers_version": "4.13.0.dev0",
}

PUBLISHED = {
    "opus-mt-en-de": OPUS_MT,
    "bart-base": BART_BASE,
    "t5-small": T5_SMALL,
    "flan-t5-small": FLAN_T5_SMALL,
    "bert-base-uncased": BERT_BASE,
    "roberta-base": ROBERTA_BASE,
    "distilbert-base-uncased-finetuned-sst-2-english": DISTILBERT_SST2,
    "vit-base-patch16-224": VIT_BASE,
}


def read(name: str) -> ModelConfig:
    return config_from_hf(PUBLISHED[name], ModelConfig)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_gives_a_model_of_the_size_in_transformers(name: str) -> None:
    values = {key: value for key, value in PUBLISHED[name].items() if key != "model_type"}
    reference = AutoConfig.for_model(PUBLISHED[name]["model_type"], **values)
    with torch.device("meta"):
        theirs = getattr(transformers, values["architectures"][0])(reference)
    expected = sum(p.numel() for p in theirs.parameters() if p.requires_grad)
    ours = sum(p.numel() for p in empty_model(read(name)).parameters())
    # A bias of the logits is no parameter there.
    bias = values["vocab_size"] if name == "opus-mt-en-de" else 0
    # transformers ties the head whatever the config says, until it reads the weights.
    head = values["vocab_size"] * values["d_model"] if name == "flan-t5-small" else 0
    assert ours == expected + bias + head


# Of flan-t5-small, transformers writes that its head is tied, which its weights contradict.
@pytest.mark.parametrize("name", sorted(set(PUBLISHED) - {"flan-t5-small"}))
def test_a_config_reads_the_same_after_transformers_rewrote_it(name: str) -> None:
    rest = {key: value for key, value in PUBLISHED[name].items() if key != "model_type"}
    rewritten = AutoConfig.for_model(PUBLISHED[name]["model_type"], **rest).to_dict()
    assert config_from_hf(rewritten, ModelConfig) == read(name)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_config_reads_the_same_after_we_wrote_it(name: str) -> None:
    config = read(name)
    written = published_config(config)
    assert config_from_hf(written, ModelConfig) == config


def test_what_a_marian_config_says() -> None:
    config = config_from_hf(OPUS_MT, EncoderDecoderConfig)
    assert config.shared_embedding
    assert config.decoder.tied_head
    assert config.decoder.head_bias
    assert config.decoder.positions == SinusoidalPositions(layout="halves")
    assert config.decoder.embedding_scale == pytest.approx(512**0.5)
    assert (config.encoder.embedding_norm, config.encoder.final_norm) == (None, None)
    assert {block.placement for block in config.encoder.blocks} == {"post"}
    assert config.decoder_start_token_id == 58100
    assert config.eos_token_ids == (0,)


def test_what_a_t5_config_says() -> None:
    config = config_from_hf(FLAN_T5_SMALL, EncoderDecoderConfig)
    assert config.encoder.positions == RelativeBiasPositions(buckets=32, max_distance=128)
    assert not config.decoder.tied_head
    assert config.decoder.head_scale == 1.0
    assert config.decoder.blocks[0].attention.scale == 1.0
    assert config.decoder.blocks[0].dense.activation == "gelu_tanh"
    plain = config_from_hf(T5_SMALL, EncoderDecoderConfig)
    assert plain.decoder.tied_head
    assert plain.decoder.head_scale == 512**-0.5
    assert plain.decoder.blocks[0].dense.kind == "mlp"


def test_what_encoder_configs_say() -> None:
    roberta = config_from_hf(ROBERTA_BASE, EncoderConfig)
    assert roberta.context_length == 512
    assert roberta.positions == LearnedPositions(offset=2)
    vit = config_from_hf(VIT_BASE, EncoderConfig)
    assert vit.context_length == 197
    assert vit.blocks[0].placement == "pre"
    sst2 = config_from_hf(DISTILBERT_SST2, EncoderConfig)
    assert sst2.head == ClassifierHead(
        labels=("NEGATIVE", "POSITIVE"), pooling="first", activation="relu"
    )


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bert-base-uncased", {"architectures": None}, r"one of BertModel, .*, got \[\]"),
        ("bert-base-uncased", {"architectures": ["BertForQuestionAnswering"]}, "architectures"),
        ("bert-base-uncased", {"position_embedding_type": "relative_key"}, "relative_key"),
        ("bert-base-uncased", {"is_decoder": True}, "is_decoder false, got true"),
        ("bert-base-uncased", {"add_cross_attention": True}, "add_cross_attention false"),
        ("bert-base-uncased", {"tie_word_embeddings": False}, "tie_word_embeddings true"),
        ("bert-base-uncased", {"num_attention_heads": 7}, "divisible by num_attention_heads"),
        ("bert-base-uncased", {"rotary_dim": 4}, "whose effect is known, got rotary_dim"),
        ("roberta-base", {"max_position_embeddings": 2}, "max_position_embeddings above 2"),
        ("roberta-base", {"type_vocab_size": "1"}, "type_vocab_size of type int"),
        (
            "distilbert-base-uncased-finetuned-sst-2-english",
            {"id2label": {"1": "A", "2": "B"}},
            "name the labels 0, 1, ...",
        ),
        (
            "distilbert-base-uncased-finetuned-sst-2-english",
            {"id2label": {"0": "A", "1": None}},
            "name the labels 0, 1, ...",
        ),
        ("distilbert-base-uncased-finetuned-sst-2-english", {"n_heads": 5}, "divisible by n_heads"),
        ("vit-base-patch16-224", {"image_size": [224]}, "image_size"),
        ("vit-base-patch16-224", {"patch_size": [16, "x"]}, "patch_size"),
        ("vit-base-patch16-224", {"patch_size": 300}, "patches that fit into the image"),
        ("vit-base-patch16-224", {"num_attention_heads": 5}, "divisible by num_attention_heads"),
        ("opus-mt-en-de", {"normalize_before": True}, "normalize_before false, got true"),
        ("opus-mt-en-de", {"static_position_embeddings": False}, "static_position_embeddings"),
        ("opus-mt-en-de", {"decoder_vocab_size": 7}, "decoder_vocab_size"),
        ("opus-mt-en-de", {"decoder_start_token_id": None}, "decoder_start_token_id, got nothing"),
        ("opus-mt-en-de", {"encoder_attention_heads": 7}, "divisible by encoder_attention_heads"),
        ("bart-base", {"normalize_embedding": False}, "normalize_embedding true, got false"),
        ("bart-base", {"architectures": ["BartForSequenceClassification"]}, "architectures"),
        ("bart-base", {"tie_word_embeddings": False}, "tie_word_embeddings true"),
        ("t5-small", {"feed_forward_proj": "double-gelu"}, "feed_forward_proj"),
        ("t5-small", {"feed_forward_proj": "gated-xielu"}, "activation of relu, .*, got 'xielu'"),
        ("t5-small", {"relative_attention_num_buckets": 3}, "an even number of at least 4 buckets"),
        ("t5-small", {"is_encoder_decoder": False}, "is_encoder_decoder true"),
    ],
)
def test_a_config_that_is_not_understood_is_an_error(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        config_from_hf(PUBLISHED[name] | changes, ModelConfig)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(sorted(PUBLISHED)),
    changes=st.dictionaries(
        st.sampled_from(sorted({key for values in PUBLISHED.values() for key in values})),
        JSON_VALUES,
        max_size=3,
    ),
)
def test_any_config_is_read_or_refused(name: str, changes: dict[str, object]) -> None:
    with contextlib.suppress(ConfigError):
        config_from_hf(PUBLISHED[name] | changes, ModelConfig)


@pytest.mark.parametrize(
    ("name", "message"),
    [("bert-base-uncased", "got an encoder"), ("t5-small", "got an encoder-decoder")],
)
def test_a_model_of_another_kind_than_asked_for_is_an_error(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"expected a decoder, {message}"):
        config_from_hf(PUBLISHED[name])
