"""Cases of the older decoders: each family, and each option that it reads."""

from typing import Any

from tests.tiny.classics import (
    APERTUS,
    BIOGPT,
    BLOOM,
    CLASSICS,
    CODEGEN,
    CTRL,
    FALCON,
    GPT_BIGCODE,
    GPT_NEO,
    GPT_NEOX,
    GPT_NEOX_JAPANESE,
    GPTJ,
    MODERNBERT_DECODER,
    MPT,
    OPENAI_GPT,
    OPT,
    PERSIMMON,
    PHI,
    STABLELM,
    STARCODER2,
    XGLM,
)

_HEADS = {"hidden_size": 64, "num_attention_heads": 4}

CASES: dict[str, dict[str, Any]] = {
    **CLASSICS,
    "opt-post-norm": OPT | {"do_layer_norm_before": False},
    "opt-unbiased": OPT | {"enable_bias": False, "activation_function": "gelu"},
    "opt-plain-norms": OPT | {"layer_norm_elementwise_affine": False},
    "opt-no-last-norm": OPT | {"_remove_final_layer_norm": True},
    "opt-untied": OPT | {"tie_word_embeddings": False},
    "biogpt-unscaled": BIOGPT | {"scale_embedding": False, "hidden_act": "relu"},
    "xglm-unscaled": XGLM | {"scale_embedding": False, "activation_function": "relu"},
    "gpt_neo-global": GPT_NEO | {"attention_types": [[["global"], 2]], "intermediate_size": 40},
    "gpt_neo-values": GPT_NEO | {"layer_norm_epsilon": 0.3, "activation_function": "relu"},
    "starcoder2-unbiased": STARCODER2 | {"use_bias": False, "sliding_window": None},
    "starcoder2-values": STARCODER2
    | {"norm_epsilon": 0.3, "hidden_act": "relu", "tie_word_embeddings": False},
    "stablelm-quarter": STABLELM | _HEADS | {"partial_rotary_factor": 0.25, "use_qkv_bias": True},
    "stablelm-parallel": STABLELM | {"use_parallel_residual": True, "layer_norm_eps": 0.3},
    "gpt_bigcode-heads": GPT_BIGCODE | {"multi_query": False, "n_inner": 40},
    "gpt_bigcode-unscaled": GPT_BIGCODE | {"scale_attn_weights": False, "n_head": 4},
    "phi-grouped": PHI | _HEADS | {"num_key_value_heads": 2, "partial_rotary_factor": 0.5},
    "phi-values": PHI | {"layer_norm_eps": 0.3, "hidden_act": "gelu"},
    "phi-normed": PHI | {"qk_layernorm": True},
    "gpt_neox-sequential": GPT_NEOX | {"use_parallel_residual": False, "attention_bias": False},
    "gpt_neox-quarter": GPT_NEOX | _HEADS | {"rotary_pct": 0.25, "rotary_emb_base": 500},
    "gpt_neox-values": GPT_NEOX
    | {"layer_norm_eps": 0.3, "hidden_act": "relu", "tie_word_embeddings": True},
    "gpt_neox_japanese-values": GPT_NEOX_JAPANESE
    | _HEADS
    | {"rotary_pct": 0.5, "rotary_emb_base": 500, "tie_word_embeddings": False},
    "gptj-partial": GPTJ | {"rotary_dim": 8, "n_inner": 40, "n_head": 1},
    "codegen-partial": CODEGEN | {"rotary_dim": 8, "n_inner": 40, "activation_function": "relu"},
    "bloom-heads": BLOOM | {"hidden_size": 48, "n_head": 6},
    "bloom-normed-residual": BLOOM | {"apply_residual_connection_post_layernorm": True},
    "falcon-sequential": FALCON | {"parallel_attn": False, "bias": True},
    "falcon-heads": FALCON | {"multi_query": False, "ffn_hidden_size": 40},
    "falcon-new": FALCON | _HEADS | {"new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon-new-one-norm": FALCON
    | _HEADS
    | {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "activation": "relu"},
    "mpt-heads": MPT | {"d_model": 48, "n_heads": 6, "layer_norm_epsilon": 0.3},
    "mpt-clipped": MPT | {"attn_config": {"clip_qkv": 0.5, "softmax_scale": 0.6}},
    "persimmon-plain": PERSIMMON | {"qk_layernorm": False, "partial_rotary_factor": 1.0},
    "persimmon-values": PERSIMMON | {"layer_norm_eps": 0.3, "hidden_act": "silu"},
    "apertus-values": APERTUS | {"attention_bias": True, "rms_norm_eps": 0.3},
    "modernbert-decoder-biased": MODERNBERT_DECODER
    | {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True},
    "modernbert-decoder-values": MODERNBERT_DECODER
    | {
        "classifier_activation": "silu",
        "decoder_bias": False,
        "hidden_activation": "relu",
        "layer_types": ["sliding_attention", "full_attention"],
        "norm_eps": 0.3,
        "tie_word_embeddings": False,
    },
    "openai-gpt-silu": OPENAI_GPT | {"afn": "silu", "layer_norm_epsilon": 0.3},
    "ctrl-norm": CTRL | {"layer_norm_epsilon": 0.3},
}

FALCON_ALIBI = FALCON | _HEADS | {"alibi": True, "bias": True, "multi_query": False}
