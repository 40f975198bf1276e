"""Encoders and encoder-decoders: two layers of two heads."""

from typing import Any

from tests.tiny.decoders import LLAMA, VOCABULARY
from tests.tiny.hybrids import LFM2, QWEN3_5

PAD = 1

NO_TOKENS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
"""For families whose default ids are beyond this vocabulary."""

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}

BERT: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "vocab_size": VOCABULARY,
    **SIZES,
    "max_position_embeddings": 96,
    "pad_token_id": PAD,
}

DISTILBERT: dict[str, Any] = {
    "model_type": "distilbert",
    "architectures": ["DistilBertForMaskedLM"],
    "vocab_size": VOCABULARY,
    "dim": 32,
    "hidden_dim": 48,
    "n_layers": 2,
    "n_heads": 2,
    "max_position_embeddings": 96,
    "pad_token_id": PAD,
}

VIT: dict[str, Any] = {
    "model_type": "vit",
    "architectures": ["ViTForImageClassification"],
    **SIZES,
    "image_size": 8,
    "patch_size": 2,
    "num_channels": 3,
}

DEIT: dict[str, Any] = VIT | {
    "model_type": "deit",
    "architectures": ["DeiTForImageClassificationWithTeacher"],
}

DINOV2: dict[str, Any] = VIT | {
    "model_type": "dinov2",
    "architectures": ["Dinov2ForImageClassification"],
    "intermediate_size": None,
    "mlp_ratio": 2,
    "layerscale_value": 0.7,
}

DINOV2_REGISTERS: dict[str, Any] = DINOV2 | {
    "model_type": "dinov2_with_registers",
    "architectures": ["Dinov2WithRegistersForImageClassification"],
    "num_register_tokens": 3,
}

DINOV3: dict[str, Any] = VIT | {
    "model_type": "dinov3_vit",
    "architectures": ["DINOv3ViTModel"],
    "num_register_tokens": 3,
    "layerscale_value": 0.7,
}

CLIP_VISION: dict[str, Any] = VIT | {
    "model_type": "clip_vision_model",
    "architectures": ["CLIPVisionModelWithProjection"],
    "projection_dim": 24,
    "hidden_act": "quick_gelu",
}

_OF_TEXTS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    **SIZES,
    "max_position_embeddings": 24,
    "bos_token_id": 0,
    "eos_token_id": 2,
}


def _tower(model_type: str, activation: str) -> dict[str, Any]:
    """The side of images of a model of both."""
    return VIT | {"model_type": model_type, "architectures": None, "hidden_act": activation}


CLIP: dict[str, Any] = {
    "model_type": "clip",
    "architectures": ["CLIPModel"],
    "projection_dim": 24,
    "vision_config": _tower("clip_vision_model", "quick_gelu"),
    "text_config": _OF_TEXTS | {"model_type": "clip_text_model"},
}

LLAVA: dict[str, Any] = {
    "model_type": "llava",
    "architectures": ["LlavaForConditionalGeneration"],
    "vision_config": _tower("clip_vision_model", "quick_gelu"),
    "text_config": LLAMA,
    "image_token_index": 5,
}

IDEFICS3: dict[str, Any] = {
    "model_type": "idefics3",
    "architectures": ["Idefics3ForConditionalGeneration"],
    "vision_config": _tower("idefics3_vision", "gelu_pytorch_tanh"),
    "text_config": LLAMA,
    "image_token_id": 5,
    "scale_factor": 2,
}

SMOLVLM: dict[str, Any] = IDEFICS3 | {
    "model_type": "smolvlm",
    "architectures": ["SmolVLMForConditionalGeneration"],
    "vision_config": _tower("smolvlm_vision", "gelu_pytorch_tanh"),
}

QWEN3_ASR: dict[str, Any] = {
    "model_type": "qwen3_asr",
    "architectures": ["Qwen3ASRForConditionalGeneration"],
    "audio_config": {
        "model_type": "qwen3_asr_encoder",
        "num_mel_bins": 10,
        "d_model": 32,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 48,
        "downsample_hidden_size": 6,
        "n_window": 50,  # transformers counts 13 vectors in a chunk
        "n_window_infer": 300,
        "max_position_embeddings": 13,
        "output_dim": LLAMA["hidden_size"],
    },
    "text_config": LLAMA | {"model_type": "qwen3", "head_dim": 16},
    "audio_token_id": 5,
    "pad_token_id": 0,
    "eos_token_id": [2],
    "tie_word_embeddings": True,
}

INTERNVL: dict[str, Any] = {
    "model_type": "internvl",
    "architectures": ["InternVLForConditionalGeneration"],
    "vision_config": _tower("internvl_vision", "gelu") | {"layer_scale_init_value": 0.7},
    "text_config": LLAMA | {"model_type": "qwen2", "tie_word_embeddings": True},
    "image_token_id": 5,
}

GEMMA3: dict[str, Any] = {
    "model_type": "gemma3",
    "architectures": ["Gemma3ForConditionalGeneration"],
    "vision_config": _tower("siglip_vision_model", "gelu_pytorch_tanh")
    | {"image_size": 16, "vision_use_head": False},
    "text_config": {
        "model_type": "gemma3_text",
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "max_position_embeddings": 96,
        "sliding_window": 10,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "mm_tokens_per_image": 16,
    "image_token_index": 5,
    "boi_token_index": 6,
    "eoi_token_index": 7,
    "tie_word_embeddings": True,
}
"""Windows are shorter than the vectors of an image."""

QWEN_VISION: dict[str, Any] = {
    "depth": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": 4,
    "out_hidden_size": LLAMA["hidden_size"],
    "num_position_embeddings": 36,
}

AXES = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "mrope_section": [4, 2, 2],
        "mrope_interleaved": True,
    }
}

QWEN3_VL: dict[str, Any] = {
    "model_type": "qwen3_vl",
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "vision_config": QWEN_VISION
    | {"model_type": "qwen3_vl_vision", "deepstack_visual_indexes": [0, 2]},
    "text_config": {
        **{key: LLAMA[key] for key in LLAMA if not key.startswith("rope")},
        **AXES,
        "model_type": "qwen3_vl_text",
        "architectures": None,
        "head_dim": 16,
    },
    "image_token_id": 5,
}

QWEN3_5_VL: dict[str, Any] = {
    "model_type": "qwen3_5",
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "vision_config": QWEN_VISION | {"model_type": "qwen3_5_vision"},
    "text_config": QWEN3_5
    | {"rope_parameters": AXES["rope_parameters"] | {"partial_rotary_factor": 0.25}},
    "image_token_id": 5,
}

SIGLIP: dict[str, Any] = {
    "model_type": "siglip",
    "architectures": ["SiglipForImageClassification"],
    "vision_config": _tower("siglip_vision_model", "gelu_pytorch_tanh"),
    "text_config": _OF_TEXTS | {"model_type": "siglip_text_model"},
}

CLIP_TEXT: dict[str, Any] = _OF_TEXTS | {
    "model_type": "clip_text_model",
    "architectures": ["CLIPTextModelWithProjection"],
    "max_position_embeddings": 96,
    "projection_dim": 24,
    "pad_token_id": PAD,
}

SIGLIP_TEXT: dict[str, Any] = _OF_TEXTS | {
    "model_type": "siglip_text_model",
    "architectures": ["SiglipTextModel"],
    "max_position_embeddings": 96,
    "projection_size": 24,
    "pad_token_id": PAD,
}

SIGLIP_VISION: dict[str, Any] = _tower("siglip_vision_model", "gelu_pytorch_tanh") | {
    "architectures": ["SiglipVisionModel"]
}

_GRID = {
    "model_type": "siglip2_vision_model",
    **SIZES,
    "num_channels": 3,
    "patch_size": 2,
    "num_patches": 16,
}

SIGLIP2: dict[str, Any] = {
    "model_type": "siglip2",
    "architectures": ["Siglip2Model"],
    "vision_config": _GRID,
    "text_config": _OF_TEXTS | {"model_type": "siglip2_text_model"},
}

LFM2_VL: dict[str, Any] = {
    "model_type": "lfm2_vl",
    "architectures": ["Lfm2VlForConditionalGeneration"],
    "vision_config": _GRID | {"vision_use_head": False},
    "text_config": LFM2,
    "image_token_id": 5,
    "projector_hidden_size": 24,
}

SIGLIP2_TEXT = SIGLIP_TEXT | {
    "model_type": "siglip2_text_model",
    "architectures": ["Siglip2TextModel"],
}

SIGLIP2_VISION = _GRID | {"architectures": ["Siglip2VisionModel"]}

TWO_SIDES: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
}

MARIAN: dict[str, Any] = {
    "model_type": "marian",
    "architectures": ["MarianMTModel"],
    "vocab_size": VOCABULARY,
    **TWO_SIDES,
    "max_position_embeddings": 96,
    "activation_function": "relu",
    "scale_embedding": True,
    "pad_token_id": PAD,
    "eos_token_id": 2,
    "decoder_start_token_id": PAD,
    "forced_eos_token_id": None,
}

T5: dict[str, Any] = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "pad_token_id": PAD,
    "decoder_start_token_id": PAD,
}

WHISPER: dict[str, Any] = {
    "model_type": "whisper",
    "architectures": ["WhisperForConditionalGeneration"],
    "vocab_size": 99,
    "num_mel_bins": 8,
    **TWO_SIDES,
    "max_source_positions": 10,
    "max_target_positions": 96,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 3,
    "begin_suppress_tokens": None,
}

WAV2VEC2: dict[str, Any] = {
    "model_type": "wav2vec2",
    "architectures": ["Wav2Vec2ForCTC"],
    "vocab_size": 12,
    **SIZES,
    "conv_dim": [16, 16, 24],
    "conv_kernel": [5, 3, 2],
    "conv_stride": [4, 2, 2],
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
}

HUBERT: dict[str, Any] = WAV2VEC2 | {
    "model_type": "hubert",
    "architectures": ["HubertForCTC"],
    "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
    "conv_bias": True,
}

MOONSHINE: dict[str, Any] = {
    "model_type": "moonshine",
    "architectures": ["MoonshineForConditionalGeneration"],
    "vocab_size": 99,
    "hidden_size": 36,
    "intermediate_size": 48,
    "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 3,
    "encoder_num_attention_heads": 2,
    "decoder_num_attention_heads": 2,
    "max_position_embeddings": 96,
    "pad_token_id": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}

MASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", {}),
    "roberta": ("Roberta", {"type_vocab_size": 1}),
    "camembert": ("Camembert", {}),
    "data2vec-text": ("Data2VecText", {}),
    "ernie": ("Ernie", {}),
    "megatron-bert": ("MegatronBert", {}),
    "roberta-prelayernorm": ("RobertaPreLayerNorm", {}),
    "xlm-roberta": ("XLMRoberta", {}),
    "xlm-roberta-xl": ("XLMRobertaXL", {}),
    "albert": ("Albert", {"embedding_size": 16}),
    "electra": ("Electra", {"embedding_size": 16}),
    "mpnet": ("MPNet", {}),
    "eurobert": ("EuroBert", {"num_key_value_heads": 1, "classifier_pooling": "mean"} | NO_TOKENS),
    "gte": ("Gte", {}),
    "jina_embeddings_v3": ("JinaEmbeddingsV3", {}),
    "modernbert": ("ModernBert", {"local_attention": 6, **NO_TOKENS}),
    "big_bird": ("BigBird", {"rescale_embeddings": True}),
    "rembert": (
        "RemBert",
        {"input_embedding_size": 16, "output_embedding_size": 24, **NO_TOKENS},
    ),
    "roformer": ("RoFormer", {"embedding_size": 16}),
    "nomic_bert": ("NomicBert", {}),
}
"""Encoders, what the names of their classes begin with, and what they have otherwise than BERT."""

BART = MARIAN | {"model_type": "bart", "activation_function": "gelu", "scale_embedding": False}

BART_LIKE = {
    "bart": "Bart",
    "blenderbot": "Blenderbot",
    "m2m_100": "M2M100",
    "mbart": "MBart",
    "mvp": "Mvp",
    "pegasus": "Pegasus",
    "plbart": "PLBart",
}
"""Encoder-decoders, and what the names of their classes begin with."""

_CONDITIONAL: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (classes, MARIAN) for name, classes in BART_LIKE.items()},
    # The padding id has no position in transformers, so a sequence cannot begin with it.
    "m2m_100": ("M2M100", MARIAN | {"decoder_start_token_id": 2}),
    "t5": ("T5", T5),
    "mt5": ("MT5", T5),
    "umt5": ("UMT5", T5),
}

_ALL: tuple[dict[str, Any], ...] = (
    *(WHISPER, MOONSHINE, WAV2VEC2, HUBERT),
    *(
        BERT | {"model_type": name, "architectures": [f"{classes}ForMaskedLM"], **values}
        for name, (classes, values) in MASKED.items()
    ),
    *(DISTILBERT, VIT, DEIT, DINOV2, DINOV2_REGISTERS, DINOV3),
    *(CLIP, CLIP_TEXT, CLIP_VISION, LLAVA, IDEFICS3, SMOLVLM),
    *(GEMMA3, INTERNVL, QWEN3_ASR, QWEN3_VL, QWEN3_5_VL, MARIAN),
    *(SIGLIP, SIGLIP_TEXT, SIGLIP_VISION),
    *(SIGLIP2, SIGLIP2_TEXT, SIGLIP2_VISION, LFM2_VL),
    *(
        values | {"model_type": name, "architectures": [f"{classes}ForConditionalGeneration"]}
        for name, (classes, values) in _CONDITIONAL.items()
    ),
)

ENCODERS: dict[str, dict[str, Any]] = {values["model_type"]: values for values in _ALL}
