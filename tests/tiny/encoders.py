"""Encoders and encoder-decoders: two layers of two heads."""

from typing import Any

from tests.tiny.decoders import VOCABULARY

PAD = 1

NO_TOKENS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
"""In place of ids beyond so small a vocabulary."""

BERT: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
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
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 2,
    "num_channels": 3,
}

MARIAN: dict[str, Any] = {
    "model_type": "marian",
    "architectures": ["MarianMTModel"],
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
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
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "pad_token_id": PAD,
    "decoder_start_token_id": PAD,
}

_ALL: tuple[dict[str, Any], ...] = (
    BERT,
    BERT | {"model_type": "roberta", "architectures": ["RobertaForMaskedLM"], "type_vocab_size": 1},
    BERT | {"model_type": "camembert", "architectures": ["CamembertForMaskedLM"]},
    BERT | {"model_type": "data2vec-text", "architectures": ["Data2VecTextForMaskedLM"]},
    BERT | {"model_type": "ernie", "architectures": ["ErnieForMaskedLM"]},
    BERT | {"model_type": "megatron-bert", "architectures": ["MegatronBertForMaskedLM"]},
    BERT
    | {
        "model_type": "roberta-prelayernorm",
        "architectures": ["RobertaPreLayerNormForMaskedLM"],
    },
    BERT | {"model_type": "xlm-roberta", "architectures": ["XLMRobertaForMaskedLM"]},
    BERT | {"model_type": "xlm-roberta-xl", "architectures": ["XLMRobertaXLForMaskedLM"]},
    BERT
    | {
        "model_type": "albert",
        "architectures": ["AlbertForMaskedLM"],
        "embedding_size": 16,
        "num_hidden_groups": 1,
    },
    BERT | {"model_type": "electra", "architectures": ["ElectraForMaskedLM"], "embedding_size": 16},
    BERT | {"model_type": "mpnet", "architectures": ["MPNetForMaskedLM"]},
    BERT
    | {
        "model_type": "eurobert",
        "architectures": ["EuroBertForMaskedLM"],
        "num_key_value_heads": 1,
        **NO_TOKENS,
    },
    BERT | {"model_type": "gte", "architectures": ["GteForMaskedLM"]},
    BERT | {"model_type": "jina_embeddings_v3", "architectures": ["JinaEmbeddingsV3ForMaskedLM"]},
    BERT
    | {
        "model_type": "modernbert",
        "architectures": ["ModernBertForMaskedLM"],
        "local_attention": 6,
        **NO_TOKENS,
    },
    BERT | {"model_type": "big_bird", "architectures": ["BigBirdForMaskedLM"]},
    BERT
    | {
        "model_type": "rembert",
        "architectures": ["RemBertForMaskedLM"],
        "input_embedding_size": 16,
        "output_embedding_size": 24,
        **NO_TOKENS,
    },
    BERT | {"model_type": "roformer", "architectures": ["RoFormerForMaskedLM"]},
    BERT | {"model_type": "nomic_bert", "architectures": ["NomicBertForMaskedLM"]},
    DISTILBERT,
    VIT,
    MARIAN,
    *(
        MARIAN | {"model_type": name, "architectures": [f"{classes}ForConditionalGeneration"]}
        for name, classes in {
            "bart": "Bart",
            "blenderbot": "Blenderbot",
            "mbart": "MBart",
            "mvp": "Mvp",
            "pegasus": "Pegasus",
            "plbart": "PLBart",
        }.items()
    ),
    # The padding id has no position in transformers, so that a text cannot begin with it.
    MARIAN
    | {
        "model_type": "m2m_100",
        "architectures": ["M2M100ForConditionalGeneration"],
        "decoder_start_token_id": 2,
    },
    T5,
    T5 | {"model_type": "mt5", "architectures": ["MT5ForConditionalGeneration"]},
    T5 | {"model_type": "umt5", "architectures": ["UMT5ForConditionalGeneration"]},
)

ENCODERS: dict[str, dict[str, Any]] = {values["model_type"]: values for values in _ALL}
