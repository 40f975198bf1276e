"""A tiny config of every type of causal language model that transformers has.

A type's default config is made small by the names of its fields, whatever they are called; what
that does not do for some types is a row of `OVERRIDES`.
"""

from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

TYPES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)

VOCABULARY = 100

_FIELDS: Mapping[int, str] = {
    0: "pad_token_id embd_pdrop attn_pdrop resid_pdrop",
    1: "bos_token_id topk_group n_group num_expert_group n_shared_experts num_shared_experts "
    "moe_num_shared_experts first_k_dense_replace num_dense_layers moe_layer_start_index n_groups "
    "mamba_n_groups",
    2: "eos_token_id num_experts_per_tok num_experts_per_token moe_k moe_topk num_hidden_layers "
    "n_layer n_layers num_layers decoder_layers encoder_layers num_decoder_layers "
    "num_encoder_layers depth num_mem_blocks",
    4: "num_attention_heads n_head n_heads num_heads decoder_attention_heads "
    "encoder_attention_heads num_decoder_attention_heads num_encoder_attention_heads "
    "num_experts num_local_experts n_routed_experts moe_num_experts linear_num_heads "
    "linear_num_value_heads linear_num_key_heads index_n_heads swa_num_attention_heads index_topk "
    "conv_kernel_size",
    8: "sliding_window sliding_window_size window_size local_attention keep_window_size "
    "attention_window_size hidden_size_per_layer_input linear_key_head_dim linear_value_head_dim "
    "laurel_rank mamba_d_state ssm_state_size state_size mamba_dt_rank time_step_rank",
    16: "head_dim d_kv swa_head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim kv_lora_rank "
    "index_head_dim rotary_dim kv_channels mamba_d_head mamba_head_dim linear_head_dim dim_head "
    "swa_v_head_dim attention_head_dim global_head_dim query_pre_attn_scalar",
    24: "q_lora_rank o_lora_rank",
    32: "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size "
    "shared_experts_intermediate_size moe_shared_expert_intermediate_size qk_head_dim",
    64: "hidden_size d_model n_embd dim lru_width word_embed_proj_dim embedding_size "
    "projection_dim out_hidden_size",
    96: "intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim n_inner ffn_hidden_size dff "
    "dim_ff dense_intermediate_size intermediate_size_mlp feed_forward_size",
    128: "max_position_embeddings n_positions max_seq_len context_length max_target_positions "
    "model_max_length n_ctx",
    VOCABULARY: "vocab_size vocab_size_per_layer_input decoder_vocab_size",
}
SIZES = {name: size for size, names in _FIELDS.items() for name in names.split()}

KEY_VALUE_HEADS = ("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads")
QUERY_HEADS = ("num_attention_heads", "n_head", "swa_num_attention_heads")

DECODERS = {
    "bart",
    "bert",
    "bert-generation",
    "big_bird",
    "bigbird_pegasus",
    "blenderbot",
    "blenderbot-small",
    "camembert",
    "data2vec-text",
    "electra",
    "ernie",
    "marian",
    "mbart",
    "megatron-bert",
    "mvp",
    "pegasus",
    "plbart",
    "prophetnet",
    "reformer",
    "rembert",
    "roberta",
    "roberta-prelayernorm",
    "roc_bert",
    "roformer",
    "trocr",
    "whisper",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
}
"""Types that are causal where their config says so."""

OVERRIDES: Mapping[str, Mapping[str, object]] = {
    "bamba": {
        "attn_layer_indices": [1],
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0}
            for kind in ("sliding_attention", "full_attention")
        },
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 32, "moe_top_k": 2},
    },
    "falcon_h1": {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_ssm": 64},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
    },
    "gpt_neo": {
        "attention_types": [[["global", "local"], 1]],
        "attention_layers": ["global", "local"],
    },
    "granitemoehybrid": {
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "layer_types": ["mamba", "attention"],
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {
        "num_hidden_layers": 2,
        "layer_types": ["conv", "full_attention"],
        "full_attn_idxs": [1],
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "nemotron": {"num_key_value_heads": 2},
    "phi4_multimodal": {
        "vision_config": {"image_size": 28},
        "audio_config": {"num_blocks": 1, "ext_pw_out_channel": 64, "nemo_conv_channels": 16},
    },
    "roc_bert": {
        "pronunciation_vocab_size": 10,
        "shape_vocab_size": 10,
        "pronunciation_embed_dim": 8,
        "shape_embed_dim": 8,
    },
    "xlm": {"emb_dim": 64, "causal": True},
    "xlnet": {"d_head": 16},
    "xlstm": {"embedding_dim": 64, "num_blocks": 2},
    "zamba": {
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "mamba_dt_rank": 4,
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
    },
    "zamba2": {
        "mamba_headdim": 16,
        "n_mamba_heads": 8,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "num_mem_blocks": 1,
        "hybrid_layer_ids": [1, 3],
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
    },
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16},
    "reformer": {"axial_pos_embds_dim": [16, 48], "axial_pos_shape": [8, 16], "hash_seed": 0},
    "xmod": {"default_language": "en_XX"},
}

WITHOUT: Mapping[str, str] = {
    "dots3_note": "attends to tokens that an indexer chooses",
    "dots3_note_text": "attends to tokens that an indexer chooses",
    "gemma3n": "its image tower needs timm; gemma3n_text does not",
    "gemma4_assistant": "drafts from the hidden states of another model",
    "gemma4_unified_assistant": "drafts from the hidden states of another model",
    "musicgen": "writes several codebooks of sound from another model's states",
    "musicgen_melody": "writes several codebooks of sound from another model's states",
    "qwen4_exp": "attends to tokens that an indexer chooses",
    "qwen4_exp_text": "attends to tokens that an indexer chooses",
}
"""Types that have no tiny config here, and why none is needed."""


def tiny_config(model_type: str) -> PreTrainedConfig:
    """The tiny config of a type.

    Raises:
        ValueError: there is none.
    """
    if model_type in WITHOUT:
        raise ValueError(WITHOUT[model_type])
    kind: Any = CONFIG_MAPPING[model_type]
    values = _shrink(kind().to_dict()) | ({"is_decoder": True} if model_type in DECODERS else {})
    config: PreTrainedConfig = kind(**_merge(values, OVERRIDES.get(model_type, {})))
    return config


def _merge(values: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    merged = dict(values)
    for name, value in over.items():
        own = merged.get(name)
        if isinstance(own, Mapping) and isinstance(value, Mapping):
            merged[name] = _merge(own, value)
        else:
            merged[name] = value
    return merged


def _shrink(values: Mapping[str, object]) -> dict[str, object]:
    """A config's values with every size in it small, and a few of its layers, one of each kind."""
    small: dict[str, object] = {}
    layers = _chosen_layers(values)
    for name, value in values.items():
        match value:
            case dict() if name == "per_layer_config":
                small[name] = {
                    place: {key: SIZES.get(key, own) for key, own in value[at].items()}
                    for place, layer in enumerate(layers)
                    if (at := next((key for key in value if int(key) == layer), None)) is not None
                }
            case dict():
                small[name] = _shrink(value) if "model_type" in value else value
            case list() if layers and len(value) == _depth(values):
                small[name] = [value[layer] for layer in layers]
            case _ if name.startswith(("forced_", "suppress_", "begin_suppress_")):
                small[name] = None  # what is generated shall be the likeliest
            case list() if name == "eos_token_id":
                small[name] = [SIZES[name], SIZES[name] + 1]
            case int() | None if name in SIZES and not isinstance(value, bool):
                small[name] = SIZES[name] if value is not None or name == "head_dim" else None
            case _:
                small[name] = value
    if layers:
        small |= {name: len(layers) for name in ("num_hidden_layers",) if name in small}
    for ours, theirs in zip(KEY_VALUE_HEADS, (*QUERY_HEADS,), strict=True):
        if isinstance(values.get(ours), int):
            few = values[ours] != next(
                (values[q] for q in (theirs, *QUERY_HEADS) if q in values), 0
            )
            small[ours] = (1 if values[ours] == 1 else 2) if few else 4
    small.pop("transformers_version", None)
    return small


def _depth(values: Mapping[str, object]) -> int:
    depth = values.get("num_hidden_layers", 0)
    return depth if isinstance(depth, int) else 0


def _chosen_layers(values: Mapping[str, object]) -> list[int]:
    """The first layer of each kind; at least two."""
    depth = _depth(values)
    lists = [v for v in values.values() if isinstance(v, list) and len(v) == depth]
    if not lists or depth < 2:
        return []
    kinds: dict[object, int] = {}
    for layer in range(depth):
        kinds.setdefault(repr([each[layer] for each in lists]), layer)
    chosen = sorted(kinds.values())[:6]
    return chosen if len(chosen) > 1 else [chosen[0], chosen[0]]
