"""GGUF architectures, and the Hugging Face families they correspond to.

A GGUF key that is not in this table keeps its own name. It is then an unknown key of the config,
which is an error unless it is accepted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ortolan.modeling.checkpoint.gguf import names
from ortolan.modeling.checkpoint.gguf.names import Names

SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
}
"""GGUF keys below the architecture's name, and the config keys they become."""

EPSILON = "attention.layer_norm_epsilon"

RMS = SIZES | {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}

LAYER_NORM = SIZES | {EPSILON: "layer_norm_eps"}

WINDOW = {"attention.sliding_window": "sliding_window"}

PARALLEL = {"use_parallel_residual": "use_parallel_residual"}

GPT2_SIZES = {
    "context_length": "n_positions",
    "embedding_length": "n_embd",
    "block_count": "n_layer",
    "feed_forward_length": "n_inner",
    "attention.head_count": "n_head",
    EPSILON: "layer_norm_epsilon",
}

SOFT_CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}

GELU_TANH = "gelu_pytorch_tanh"

BIASES = {"attention_bias": "attn_q.bias", "mlp_bias": "ffn_up.bias"}

HEAD_NORM = "attn_q_norm.weight"


@dataclass(frozen=True, slots=True)
class Architecture:
    """How to read GGUF files of one architecture as a Hugging Face checkpoint.

    Attributes:
        model_type: of the config.
        names: Hugging Face names of tensors.
        keys: config keys by GGUF keys below the architecture's name; None if shapes imply it.
        implied: config values that every such file implies.
        switches: config keys that are true if the first layer has a tensor.
        turns_pairs: rows of queries and keys alternate between the halves of a head.
        groups_qkv: the file stores all queries, then keys, then values; the checkpoint stores them
            per group of heads.
        transposed: tensors that the checkpoint stores as `(in, out)`.
        norm_offset: added by the file to the weights of norms.
        partial: config key for the rotated share of a head.
    """

    model_type: str
    names: Names = names.LLAMA
    keys: Mapping[str, str | None] = field(default_factory=lambda: RMS)
    implied: Mapping[str, object] = field(default_factory=dict)
    switches: Mapping[str, str] = field(default_factory=dict)
    turns_pairs: bool = False
    groups_qkv: bool = False
    transposed: tuple[str, ...] = ()
    norm_offset: float = 0.0
    partial: str = "partial_rotary_factor"


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("llama", switches=BIASES, turns_pairs=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "qwen3moe": Architecture(
        "qwen3_moe",
        keys=RMS
        | {
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
        },
        implied={"norm_topk_prob": True},
    ),
    "smollm3": Architecture("smollm3", switches=BIASES, turns_pairs=True),
    "olmo2": Architecture("olmo2"),
    "granite": Architecture(
        "granite",
        keys=RMS
        | {
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
        switches=BIASES,
        turns_pairs=True,
    ),
    "gemma": Architecture(
        "gemma",
        implied={"hidden_act": GELU_TANH, "hidden_activation": GELU_TANH},
        norm_offset=1.0,
    ),
    "gemma2": Architecture(
        "gemma2",
        keys=RMS | WINDOW | SOFT_CAPS,
        implied={"hidden_activation": GELU_TANH},
        norm_offset=1.0,
    ),
    "gemma3": Architecture(
        "gemma3_text",
        keys=RMS
        | WINDOW
        | {
            "rope.freq_base_swa": "rope_local_base_freq",
            "attention.sliding_window_pattern": "sliding_window_pattern",
        },
        implied={
            "hidden_activation": GELU_TANH,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "sliding_window_pattern": 6,
        },
        norm_offset=1.0,
    ),
    "phi3": Architecture("phi3", names.PHI3, RMS | WINDOW, implied={"hidden_act": "silu"}),
    "starcoder2": Architecture(
        "starcoder2",
        names.STARCODER2,
        SIZES | {EPSILON: "norm_epsilon"},
        implied={"hidden_act": GELU_TANH, "use_bias": True},
    ),
    "stablelm": Architecture(
        "stablelm",
        keys=LAYER_NORM | PARALLEL,
        implied={"hidden_act": "silu"},
        switches={"use_qkv_bias": "attn_q.bias", "qk_layernorm": HEAD_NORM},
    ),
    "command-r": Architecture(
        "cohere",
        keys=LAYER_NORM | {"logit_scale": "logit_scale"},
        switches={"use_qk_norm": HEAD_NORM},
    ),
    "cohere2": Architecture("cohere2", keys=LAYER_NORM | WINDOW | {"logit_scale": "logit_scale"}),
    "phi2": Architecture(
        "phi",
        names.PHI2,
        LAYER_NORM,
        implied={"hidden_act": "gelu_new"},
        switches={"qk_layernorm": HEAD_NORM},
    ),
    "olmo": Architecture(
        "olmo", keys=SIZES | {EPSILON: None, "attention.clamp_kqv": "clip_qkv"}, turns_pairs=True
    ),
    "nemotron": Architecture(
        "nemotron",
        keys=SIZES | {EPSILON: "norm_eps"},
        implied={"hidden_act": "relu2"},
        switches=BIASES,
        norm_offset=1.0,
    ),
    "arcee": Architecture(
        "arcee", implied={"hidden_act": "relu2"}, switches=BIASES, turns_pairs=True
    ),
    "ernie4_5": Architecture("ernie4_5", switches={"use_bias": "attn_q.bias"}),
    "seed_oss": Architecture("seed_oss", switches=BIASES),
    "gpt2": Architecture(
        "gpt2",
        names.GPT2,
        GPT2_SIZES,
        implied={"activation_function": "gelu_new"},
        transposed=("attn_qkv", "attn_output", "ffn_up", "ffn_down"),
    ),
    "falcon": Architecture(
        "falcon",
        names.BLOOM,
        LAYER_NORM
        | {
            "feed_forward_length": "ffn_hidden_size",
            "attention.head_count_kv": "num_kv_heads",
            EPSILON: "layer_norm_epsilon",
        },
        implied={"alibi": False, "bias": False, "parallel_attn": True, "activation": "gelu"},
        switches={"new_decoder_architecture": "attn_norm_2.weight"},
        groups_qkv=True,
    ),
    "gptneox": Architecture(
        "gpt_neox",
        names.GPT_NEOX,
        LAYER_NORM | PARALLEL | {"rope.freq_base": "rotary_emb_base"},
        implied={"hidden_act": "gelu"},
        groups_qkv=True,
        partial="rotary_pct",
    ),
    "bloom": Architecture(
        "bloom",
        names.BLOOM,
        GPT2_SIZES
        | {
            "context_length": "seq_length",
            "embedding_length": "hidden_size",
            "feed_forward_length": None,
        },
        groups_qkv=True,
    ),
}
