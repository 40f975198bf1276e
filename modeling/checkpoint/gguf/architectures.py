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

RMS = SIZES | {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}

LAYER_NORM = SIZES | {"attention.layer_norm_epsilon": "layer_norm_eps"}

WINDOWED = RMS | {"attention.sliding_window": "sliding_window"}

GPT2_SIZES = {
    "context_length": "n_positions",
    "embedding_length": "n_embd",
    "block_count": "n_layer",
    "feed_forward_length": "n_inner",
    "attention.head_count": "n_head",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}

SOFT_CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}

GELU_TANH = "gelu_pytorch_tanh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """How to read GGUF files of one architecture as a Hugging Face checkpoint.

    Attributes:
        model_type: model type of the config.
        model_class: class of transformers.
        names: names of tensors.
        keys: config keys by GGUF keys below the architecture's name; None if shapes imply it.
        implied: config values that every such file implies.
        turns_pairs: rows of queries and keys alternate between the halves of a head.
        groups_qkv: the file stores all queries, then keys, then values; the checkpoint stores them
            per group of heads.
        transposed: tensors that the checkpoint stores as `(in, out)`.
        norm_offset: added by the file to the weights of norms.
        partial: config key for the rotated share of a head.
    """

    model_type: str
    model_class: str
    names: Names = field(default_factory=lambda: names.LLAMA)
    keys: Mapping[str, str | None] = field(default_factory=lambda: RMS)
    implied: Mapping[str, object] = field(default_factory=dict)
    turns_pairs: bool = False
    groups_qkv: bool = False
    transposed: tuple[str, ...] = ()
    norm_offset: float = 0.0
    partial: str = "partial_rotary_factor"


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(model_type="llama", model_class="LlamaForCausalLM", turns_pairs=True),
    "qwen2": Architecture(model_type="qwen2", model_class="Qwen2ForCausalLM"),
    "qwen3": Architecture(
        model_type="qwen3",
        model_class="Qwen3ForCausalLM",
        names={**names.LLAMA, **names.HEAD_NORMS},
    ),
    "qwen3moe": Architecture(
        model_type="qwen3_moe",
        model_class="Qwen3MoeForCausalLM",
        names={**names.LLAMA, **names.HEAD_NORMS, **names.EXPERTS},
        keys=RMS
        | {
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
        },
        implied={"norm_topk_prob": True},
    ),
    "smollm3": Architecture(
        model_type="smollm3", model_class="SmolLM3ForCausalLM", turns_pairs=True
    ),
    "olmo2": Architecture(
        model_type="olmo2",
        model_class="Olmo2ForCausalLM",
        names={**names.LLAMA, **names.HEAD_NORMS, **names.INNER_POST},
    ),
    "granite": Architecture(
        model_type="granite",
        model_class="GraniteForCausalLM",
        keys=RMS
        | {
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
        turns_pairs=True,
    ),
    "gemma": Architecture(
        model_type="gemma",
        model_class="GemmaForCausalLM",
        implied={"hidden_act": GELU_TANH, "hidden_activation": GELU_TANH},
        norm_offset=1.0,
    ),
    "gemma2": Architecture(
        model_type="gemma2",
        model_class="Gemma2ForCausalLM",
        names={**names.LLAMA, **names.SANDWICH},
        keys=WINDOWED | SOFT_CAPS,
        implied={"hidden_activation": GELU_TANH},
        norm_offset=1.0,
    ),
    "gemma3": Architecture(
        model_type="gemma3_text",
        model_class="Gemma3ForCausalLM",
        names={**names.LLAMA, **names.HEAD_NORMS, **names.SANDWICH},
        keys=WINDOWED
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
    "phi3": Architecture(
        model_type="phi3",
        model_class="Phi3ForCausalLM",
        names={**names.LLAMA, **names.PHI3},
        keys=WINDOWED,
        implied={"hidden_act": "silu"},
    ),
    "starcoder2": Architecture(
        model_type="starcoder2",
        model_class="Starcoder2ForCausalLM",
        names={**names.LLAMA, **names.STARCODER2},
        keys=SIZES | {"attention.layer_norm_epsilon": "norm_epsilon"},
        implied={"hidden_act": GELU_TANH, "use_bias": True},
    ),
    "stablelm": Architecture(
        model_type="stablelm",
        model_class="StableLmForCausalLM",
        keys=LAYER_NORM | {"use_parallel_residual": "use_parallel_residual"},
        implied={"hidden_act": "silu"},
    ),
    "command-r": Architecture(
        model_type="cohere",
        model_class="CohereForCausalLM",
        keys=LAYER_NORM | {"logit_scale": "logit_scale"},
    ),
    "cohere2": Architecture(
        model_type="cohere2",
        model_class="Cohere2ForCausalLM",
        keys=LAYER_NORM
        | {"logit_scale": "logit_scale", "attention.sliding_window": "sliding_window"},
    ),
    "phi2": Architecture(
        model_type="phi",
        model_class="PhiForCausalLM",
        names={**names.LLAMA, **names.PHI2},
        keys=LAYER_NORM,
        implied={"hidden_act": "gelu_new"},
    ),
    "olmo": Architecture(
        model_type="olmo",
        model_class="OlmoForCausalLM",
        keys=SIZES | {"attention.layer_norm_epsilon": None, "attention.clamp_kqv": "clip_qkv"},
        turns_pairs=True,
    ),
    "nemotron": Architecture(
        model_type="nemotron",
        model_class="NemotronForCausalLM",
        keys=SIZES | {"attention.layer_norm_epsilon": "norm_eps"},
        implied={"hidden_act": "relu2"},
        norm_offset=1.0,
    ),
    "arcee": Architecture(
        model_type="arcee",
        model_class="ArceeForCausalLM",
        implied={"hidden_act": "relu2"},
        turns_pairs=True,
    ),
    "ernie4_5": Architecture(model_type="ernie4_5", model_class="Ernie4_5ForCausalLM"),
    "seed_oss": Architecture(
        model_type="seed_oss",
        model_class="SeedOssForCausalLM",
        names={**names.LLAMA, **names.NORM_OF_MLP},
    ),
    "gpt2": Architecture(
        model_type="gpt2",
        model_class="GPT2LMHeadModel",
        names=names.GPT2,
        keys=GPT2_SIZES,
        implied={"activation_function": "gelu_new"},
        transposed=("attn_qkv", "attn_output", "ffn_up", "ffn_down"),
    ),
    "falcon": Architecture(
        model_type="falcon",
        model_class="FalconForCausalLM",
        names=names.FALCON,
        keys={
            "context_length": "max_position_embeddings",
            "embedding_length": "hidden_size",
            "block_count": "num_hidden_layers",
            "feed_forward_length": "ffn_hidden_size",
            "attention.head_count": "num_attention_heads",
            "attention.head_count_kv": "num_kv_heads",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
            "rope.freq_base": "rope_theta",
        },
        implied={"alibi": False, "bias": False, "parallel_attn": True, "activation": "gelu"},
        groups_qkv=True,
    ),
    "gptneox": Architecture(
        model_type="gpt_neox",
        model_class="GPTNeoXForCausalLM",
        names=names.GPT_NEOX,
        keys={
            "context_length": "max_position_embeddings",
            "embedding_length": "hidden_size",
            "block_count": "num_hidden_layers",
            "feed_forward_length": "intermediate_size",
            "attention.head_count": "num_attention_heads",
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "use_parallel_residual": "use_parallel_residual",
            "rope.freq_base": "rotary_emb_base",
        },
        implied={"hidden_act": "gelu"},
        groups_qkv=True,
        partial="rotary_pct",
    ),
    "bloom": Architecture(
        model_type="bloom",
        model_class="BloomForCausalLM",
        names=names.BLOOM,
        keys={
            "context_length": "seq_length",
            "embedding_length": "hidden_size",
            "block_count": "n_layer",
            "feed_forward_length": None,
            "attention.head_count": "n_head",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
        },
        groups_qkv=True,
    ),
}
