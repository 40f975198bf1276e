"""Encoders and encoder-decoders of Hugging Face transformers, tiny, with random weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tests.modeling.tiny_models import LLAMA, reference_model
from tests.tiny.decoders import GPT2, VOCABULARY
from tests.tiny.encoders import (
    BART,
    BART_LIKE,
    BERT,
    CLIP_VISION,
    DEIT,
    DINOV2,
    DINOV2_REGISTERS,
    DINOV3,
    DISTILBERT,
    GEMMA3,
    LLAVA,
    MARIAN,
    MASKED,
    MOONSHINE,
    NO_TOKENS,
    PAD,
    SIGLIP,
    SIGLIP_TEXT,
    T5,
    VIT,
    WAV2VEC2,
    WHISPER,
)
from tests.tiny.mixtures import MIXTRAL
from torch import Tensor
from transformers import PreTrainedModel

OTHER_PAD = 4
"""An id of padding. Those are in texts too, where some models do not count them."""

ROBERTA = BERT | {"model_type": "roberta", "type_vocab_size": 1}

MODERN = BERT | {"model_type": "modernbert", "local_attention": 6} | NO_TOKENS

EURO = BERT | {"model_type": "eurobert"} | NO_TOKENS

ALL_BIASES = {"norm_bias": True, "mlp_bias": True, "attention_bias": True, "classifier_bias": True}

EMBEDDING_GEMMA = GEMMA3["text_config"] | {
    "use_bidirectional_attention": True,
    "sliding_window": 6,
    "query_pre_attn_scalar": 24,
}

GATED = T5 | {"feed_forward_proj": "gated-gelu"}

THREE_LABELS: dict[str, Any] = {"id2label": {0: "ham", 1: "spam", 2: "eggs"}}


HEADS = {
    "": "Model",
    "masked": "ForMaskedLM",
    "classifier": "ForSequenceClassification",
    "tokens": "ForTokenClassification",
    "answers": "ForQuestionAnswering",
}

FEWER_HEADS = {"big_bird": "answers", "eurobert": "answers", "gte": "answers"} | {
    "nomic_bert": "answers"
}
"""Heads that a family lacks in transformers, or that has layers of its own there."""


@dataclass(frozen=True)
class EncoderCase:
    """A model of transformers: its class and its config, and how large its weights are."""

    architecture: str
    values: dict[str, Any]
    spread: float = 0.3

    def reference(self) -> PreTrainedModel:
        return reference_model(self.values, architecture=self.architecture, spread=self.spread)

    def write(self, folder: Path) -> PreTrainedModel:
        """Save the reference model, and return it."""
        reference = self.reference()
        reference.save_pretrained(folder)
        return reference

    def read(self, folder: Path) -> PreTrainedModel:
        """The model of a folder, as transformers reads it."""
        kind = getattr(transformers, self.architecture)
        model: PreTrainedModel = kind.from_pretrained(folder, attn_implementation="eager")
        return model


def t5_case(
    values: dict[str, Any], architecture: str = "T5ForConditionalGeneration"
) -> EncoderCase:
    """A T5, whose scores have no scale: large weights would make them a choice of one token."""
    return EncoderCase(architecture, values, spread=0.17)


_ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", BERT),
    "bert-masked": ("BertForMaskedLM", BERT),
    "bert-masked-values": (
        "BertForMaskedLM",
        BERT | {"hidden_act": "relu", "layer_norm_eps": 0.3, "type_vocab_size": 3},
    ),
    "bert-pretraining": ("BertForPreTraining", BERT),
    "bert-classifier": ("BertForSequenceClassification", BERT | THREE_LABELS),
    **{
        f"{name}-{head}": (f"{classes}{HEADS[head]}", values)
        for name, (classes, values) in {
            "bert": ("Bert", BERT),
            "roberta": ("Roberta", ROBERTA),
            "distilbert": ("DistilBert", DISTILBERT),
        }.items()
        for head in ("tokens", "answers")
    },
    "bert-tokens-labels": ("BertForTokenClassification", BERT | THREE_LABELS),
    "roberta": ("RobertaModel", ROBERTA),
    "roberta-masked": ("RobertaForMaskedLM", ROBERTA),
    "roberta-masked-values": (
        "RobertaForMaskedLM",
        ROBERTA | {"hidden_act": "gelu_new", "pad_token_id": 4},
    ),
    "roberta-classifier": ("RobertaForSequenceClassification", ROBERTA),
    "distilbert": ("DistilBertModel", DISTILBERT),
    "distilbert-masked": ("DistilBertForMaskedLM", DISTILBERT | {"activation": "relu"}),
    "distilbert-masked-untied": (
        "DistilBertForMaskedLM",
        DISTILBERT | {"tie_word_embeddings": False},
    ),
    "distilbert-classifier": ("DistilBertForSequenceClassification", DISTILBERT | THREE_LABELS),
    **{
        f"{name}-{head or 'base'}": (
            f"{classes}{HEADS[head]}",
            BERT | {"model_type": name} | values,
        )
        for name, (classes, values) in MASKED.items()
        for head in HEADS
        if name not in ("bert", "roberta") and head != FEWER_HEADS.get(name)
    },
    "eurobert-first": (
        "EuroBertForSequenceClassification",
        EURO
        | {"classifier_pooling": "bos", "attention_bias": True}
        | {"num_attention_heads": 4, "num_key_value_heads": 2},
    ),
    "eurobert-tied": (
        "EuroBertForMaskedLM",
        EURO | {"tie_word_embeddings": True, "mlp_bias": True},
    ),
    "modernbert-tokens-biases": (
        "ModernBertForTokenClassification",
        MODERN | ALL_BIASES | THREE_LABELS,
    ),
    "modernbert-biases": ("ModernBertForMaskedLM", MODERN | ALL_BIASES | {"decoder_bias": False}),
    "modernbert-mean": (
        "ModernBertForSequenceClassification",
        MODERN | ALL_BIASES | {"classifier_pooling": "mean", "num_hidden_layers": 4},
    ),
    "embedding-gemma": ("Gemma3TextModel", EMBEDDING_GEMMA),
    "big-bird-full": (
        "BigBirdForMaskedLM",
        BERT | {"model_type": "big_bird", "attention_type": "original_full"},
    ),
    "big-bird-long": (
        "BigBirdForMaskedLM",
        BERT | {"model_type": "big_bird", "block_size": 4, "max_position_embeddings": 64},
    ),
    "roformer-wide": ("RoFormerForMaskedLM", BERT | {"model_type": "roformer"}),
    "electra-wide": ("ElectraForMaskedLM", BERT | {"model_type": "electra", "embedding_size": 32}),
}

ENCODERS = {name: EncoderCase(*row) for name, row in _ENCODERS.items()} | {
    "t5-encoder": t5_case(T5, "T5EncoderModel"),
    "umt5-encoder": t5_case(T5 | {"model_type": "umt5"}, "UMT5EncoderModel"),
}

_IMAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViTModel", VIT),
    "vit-classifier": ("ViTForImageClassification", VIT | THREE_LABELS),
    "vit-no-bias-gray": (
        "ViTForImageClassification",
        VIT | {"qkv_bias": False, "num_channels": 1, "hidden_act": "relu"},
    ),
    "vit-oblong": (
        "ViTForImageClassification",
        VIT | {"image_size": [8, 12], "patch_size": [4, 3], "layer_norm_eps": 0.2},
    ),
    "deit": ("DeiTModel", DEIT),
    "deit-classifier": ("DeiTForImageClassification", DEIT | THREE_LABELS),
    "deit-distilled": ("DeiTForImageClassificationWithTeacher", DEIT | THREE_LABELS),
    "dinov2": ("Dinov2Model", DINOV2),
    "dinov2-classifier": ("Dinov2ForImageClassification", DINOV2 | THREE_LABELS),
    "dinov2-gated": (
        "Dinov2ForImageClassification",
        DINOV2 | {"use_swiglu_ffn": True, "qkv_bias": False},
    ),
    "dinov2-registers": ("Dinov2WithRegistersModel", DINOV2_REGISTERS),
    "dinov2-registers-classifier": (
        "Dinov2WithRegistersForImageClassification",
        DINOV2_REGISTERS | THREE_LABELS,
    ),
    "dinov2-registers-none": (
        "Dinov2WithRegistersForImageClassification",
        DINOV2_REGISTERS | {"num_register_tokens": 0, "use_swiglu_ffn": True},
    ),
    "dinov3": ("DINOv3ViTModel", DINOV3),
    "dinov3-gated": (
        "DINOv3ViTModel",
        DINOV3
        | {"use_gated_mlp": True, "hidden_act": "silu", "mlp_bias": False, "proj_bias": False}
        | {"query_bias": False, "value_bias": False, "rope_theta": 7.0},
    ),
    "dinov3-oblong": (
        "DINOv3ViTModel",
        DINOV3
        | {"image_size": [8, 12], "patch_size": [4, 3], "num_register_tokens": 0}
        | {"num_attention_heads": 4, "layer_norm_eps": 0.2},
    ),
    "clip-projected": ("CLIPVisionModelWithProjection", CLIP_VISION),
    "siglip-classifier": ("SiglipForImageClassification", SIGLIP | THREE_LABELS),
}

IMAGES = {name: EncoderCase(*row) for name, row in _IMAGES.items()}

SEQ2SEQ = {
    "marian": EncoderCase("MarianMTModel", MARIAN),
    "marian-unscaled": EncoderCase("MarianMTModel", MARIAN | {"scale_embedding": False}),
    "marian-two-vocabularies": EncoderCase(
        "MarianMTModel",
        MARIAN | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 89},
    ),
    "bart": EncoderCase("BartForConditionalGeneration", BART),
    "bart-values": EncoderCase(
        "BartForConditionalGeneration",
        BART | {"activation_function": "silu", "scale_embedding": True},
    ),
    **{
        f"{name}-{'scaled' if scaled else 'unscaled'}": EncoderCase(
            f"{classes}ForConditionalGeneration",
            BART | {"model_type": name, "scale_embedding": scaled},
        )
        for name, classes in BART_LIKE.items()
        if name != "bart"
        for scaled in (False, True)
    },
    "m2m_100-padding": EncoderCase(
        "M2M100ForConditionalGeneration",
        BART | {"model_type": "m2m_100", "pad_token_id": OTHER_PAD, "scale_embedding": True},
    ),
    "t5": t5_case(T5),
    "t5-published-buckets": t5_case(
        T5 | {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}
    ),
    "t5-gated": t5_case(GATED),
    "t5-gated-silu": t5_case(
        GATED | {"feed_forward_proj": "gated-silu", "layer_norm_epsilon": 0.2}
    ),
    "mt5": t5_case(T5 | {"model_type": "mt5"}, "MT5ForConditionalGeneration"),
    "umt5": t5_case(T5 | {"model_type": "umt5"}, "UMT5ForConditionalGeneration"),
}
"""Encoder-decoders; the two sides differ in depth, heads and widths where their family allows."""


def case_of(values: dict[str, Any], spread: float = 0.3) -> EncoderCase:
    """The class that a config names."""
    return EncoderCase(values["architectures"][0], values, spread)


CASES = {
    "llama": EncoderCase("LlamaForCausalLM", LLAMA),
    "llama-tied": EncoderCase("LlamaForCausalLM", LLAMA | {"tie_word_embeddings": True}),
    "gpt2": EncoderCase("GPT2LMHeadModel", GPT2),
    "mixtral": EncoderCase("MixtralForCausalLM", MIXTRAL),
    "whisper": case_of(WHISPER),
    "moonshine": case_of(MOONSHINE, 0.2),
    "wav2vec2": case_of(WAV2VEC2),
    "llava": case_of(LLAVA),
    "siglip-text": case_of(SIGLIP_TEXT),
    **ENCODERS,
    **IMAGES,
    **SEQ2SEQ,
}
"""Models of every kind."""


@dataclass(frozen=True)
class Ragged:
    """Texts of several lengths, right padded."""

    ids: Tensor
    lengths: Tensor
    mask: Tensor


def ragged(*lengths: int, seed: int = 0, pad: int = PAD) -> Ragged:
    """Texts of these lengths, some of whose ids are those of padding."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths))
    ids = torch.randint(5, VOCABULARY, shape, generator=generator)
    ids[:, 2::6], ids[:, 5::8] = PAD, OTHER_PAD
    mask = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    return Ragged(torch.where(mask, ids, pad), torch.tensor(lengths), mask.long())


def random_images(values: dict[str, Any], *, batch: int = 3) -> Tensor:
    """Pixels `(batch, channels, height, width)`."""
    values = values.get("vision_config") or values
    size = values["image_size"]
    height, width = size if isinstance(size, list) else (size, size)
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, values["num_channels"], height, width, generator=generator)


def reference_output(model: PreTrainedModel, **inputs: Tensor) -> Tensor:
    """What the head of a model of transformers gives, or its last states without one."""
    return _output(model, inputs, "last_hidden_state")


def pooled_output(model: PreTrainedModel, **inputs: Tensor) -> Tensor:
    """The output of the head of a transformers model, or its pooled state without one."""
    return _output(model, inputs, "pooler_output")


def _output(model: PreTrainedModel, inputs: dict[str, Tensor], without_head: str) -> Tensor:
    with torch.inference_mode():
        output = model(**inputs)
    if "start_logits" in output:
        return torch.stack((output["start_logits"], output["end_logits"]), -1)
    heads = ("logits", "prediction_logits", "image_embeds", "text_embeds")
    for name in (*heads, without_head):
        if name in output:
            tensor: Tensor = output[name]
            return tensor
    raise AssertionError(f"no output in {list(output)}")
