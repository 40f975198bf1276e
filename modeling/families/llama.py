"""Llama 2 and 3, TinyLlama, SmolLM2 (Touvron et al. 2023), Mistral (Jiang et al. 2023) and Qwen.

Mistral has a sliding window in every layer; Qwen 2 and 2.5 (Yang et al. 2024) bias queries, keys
and values; Qwen 3 (Yang et al. 2025) normalises queries and keys instead.
"""

from ortolan.modeling.config import DecoderConfig, RotaryPositions
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.activations import write_activation
from ortolan.modeling.families.decoder import DecoderFormat
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.layer_kinds import (
    FULL,
    SLIDING,
    layers_of,
    read_layer_kinds,
    read_window,
    windows_of,
)
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.rope import write_rotary
from ortolan.modeling.families.tables import DOWN, OUT, UP, layer, qkv
from ortolan.modeling.weights import Table, Target

WEIGHTS: Table = {
    "model.embed_tokens.weight": Target("embedding.weight"),
    "model.layers.{}.input_layernorm.weight": Target("blocks.{}.attention_norm.weight"),
    **layer(
        "model.layers.{}.",
        {
            **qkv("self_attn.{}_proj"),
            "self_attn.o_proj": OUT,
            "mlp.gate_proj": "feed_forward.gate",
            "mlp.up_proj": UP,
            "mlp.down_proj": DOWN,
        },
    ),
    "model.layers.{}.post_attention_layernorm.weight": Target("blocks.{}.feed_forward_norm.weight"),
    "model.norm.weight": Target("final_norm.weight"),
    "lm_head.weight": Target("head.weight"),
    # Tables that old versions of transformers saved; they follow from the config.
    "model.layers.{}.self_attn.rotary_emb.inv_freq": None,
}

QUERY_KEY_NORMS: Table = {
    "model.layers.{}.self_attn.q_norm.weight": Target("blocks.{}.attention.query_norm.weight"),
    "model.layers.{}.self_attn.k_norm.weight": Target("blocks.{}.attention.key_norm.weight"),
}

LLAMA = DecoderFormat(bias="attention_bias", mlp_bias="mlp_bias")


def _llama(hf: ConfigReader) -> DecoderConfig:
    hf.skip("is_llama_config")
    hf.refuse("rope_interleaved")
    return LLAMA.read(hf)


def _qwen2(hf: ConfigReader) -> DecoderConfig:
    hf.refuse("use_mrope")
    return DecoderFormat(qkv_bias=True, windows=_qwen_windows).read(hf)


def _qwen_windows(hf: ConfigReader) -> tuple[int | None, ...]:
    """The window of each layer: by `layer_types` if present, else from `max_window_layers` on."""
    first = hf.get("max_window_layers", int, 28)
    default = [SLIDING if i >= first else FULL for i in range(layers_of(hf))]
    window = read_window(hf, 4096)
    used = hf.get("use_sliding_window", bool, False)
    return windows_of(read_layer_kinds(hf, default), window if used else None)


def llama_keys(config: DecoderConfig, architecture: str) -> dict[str, object]:
    """The keys of a published config that Llama-like families share."""
    first, positions = config.blocks[0], config.positions
    if not isinstance(positions, RotaryPositions):
        raise ConfigError(
            f"{config.model_type}: this format has rotary positions only (got "
            f"{type(positions).__name__}). Save the model as another family."
        )
    return {
        "architectures": [architecture],
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": first.dense.intermediate_size,
        "num_hidden_layers": len(config.blocks),
        "num_attention_heads": first.attention.num_heads,
        "num_key_value_heads": first.attention.num_kv_heads,
        "head_dim": first.attention.head_dim,
        "max_position_embeddings": config.context_length,
        "hidden_act": write_activation(first.dense.activation),
        "rms_norm_eps": first.norm.eps,
        "tie_word_embeddings": config.tied_head,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "pad_token_id": config.pad_token_id,
        **write_rotary(positions, head_dim=first.attention.head_dim),
    }


def _llama_hf_config(config: DecoderConfig) -> dict[str, object]:
    first = config.blocks[0]
    return llama_keys(config, "LlamaForCausalLM") | {
        "attention_bias": first.attention.qkv_bias,
        "mlp_bias": first.dense.bias,
    }


FAMILIES: dict[str, Family[DecoderConfig]] = {
    "llama": Family(config=_llama, weights=WEIGHTS, hf_config=_llama_hf_config),
    "mistral": Family(
        config=DecoderFormat(windows=lambda hf: (read_window(hf, 4096),) * layers_of(hf)).read,
        weights=WEIGHTS,
    ),
    "qwen2": Family(config=_qwen2, weights=WEIGHTS),
    "qwen3": Family(
        config=DecoderFormat(
            bias="attention_bias", head_dim=128, query_key_norm=True, windows=_qwen_windows
        ).read,
        weights={**WEIGHTS, **QUERY_KEY_NORMS},
    ),
}
