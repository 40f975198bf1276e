"""Llama 2 and 3, TinyLlama, SmolLM2 (Touvron et al. 2023); the base of many families.

`llama_like` serves every family that differs from Llama by values alone.
"""

from ortolan.modeling.config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    FeedForwardConfig,
    NormConfig,
    RotaryPositions,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.activations import read_activation, write_activation
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.rope import read_rotary, write_rotary
from ortolan.modeling.weights import Target

BASE_MODEL_PREFIX = "model"

WEIGHTS: dict[str, Target | None] = {
    "model.embed_tokens.weight": Target("embedding.weight"),
    "model.layers.{}.input_layernorm.weight": Target("blocks.{}.attention_norm.weight"),
    "model.layers.{}.self_attn.q_proj.weight": Target("blocks.{}.attention.qkv.weight"),
    "model.layers.{}.self_attn.k_proj.weight": Target("blocks.{}.attention.qkv.weight"),
    "model.layers.{}.self_attn.v_proj.weight": Target("blocks.{}.attention.qkv.weight"),
    "model.layers.{}.self_attn.q_proj.bias": Target("blocks.{}.attention.qkv.bias"),
    "model.layers.{}.self_attn.k_proj.bias": Target("blocks.{}.attention.qkv.bias"),
    "model.layers.{}.self_attn.v_proj.bias": Target("blocks.{}.attention.qkv.bias"),
    "model.layers.{}.self_attn.o_proj.weight": Target("blocks.{}.attention.out.weight"),
    "model.layers.{}.self_attn.o_proj.bias": Target("blocks.{}.attention.out.bias"),
    "model.layers.{}.post_attention_layernorm.weight": Target("blocks.{}.feed_forward_norm.weight"),
    "model.layers.{}.mlp.gate_proj.weight": Target("blocks.{}.feed_forward.gate.weight"),
    "model.layers.{}.mlp.up_proj.weight": Target("blocks.{}.feed_forward.up.weight"),
    "model.layers.{}.mlp.gate_proj.bias": Target("blocks.{}.feed_forward.gate.bias"),
    "model.layers.{}.mlp.up_proj.bias": Target("blocks.{}.feed_forward.up.bias"),
    "model.layers.{}.mlp.down_proj.weight": Target("blocks.{}.feed_forward.down.weight"),
    "model.layers.{}.mlp.down_proj.bias": Target("blocks.{}.feed_forward.down.bias"),
    "model.norm.weight": Target("final_norm.weight"),
    "lm_head.weight": Target("head.weight"),
    # Tables that old versions of transformers saved; they follow from the config.
    "model.layers.{}.self_attn.rotary_emb.inv_freq": None,
}


def config(hf: ConfigReader) -> DecoderConfig:
    """A `LlamaConfig` of Hugging Face as a `DecoderConfig`."""
    hf.skip("is_llama_config")
    hf.refuse("rope_interleaved")
    bias = hf.get("attention_bias", bool, False)
    return llama_like(
        hf,
        model_type="llama",
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=hf.get("mlp_bias", bool, False),
        windows=(None,) * hf.size("num_hidden_layers", most=MAX_LAYERS),
    )


def llama_like(
    hf: ConfigReader,
    *,
    model_type: str,
    qkv_bias: bool,
    out_bias: bool,
    mlp_bias: bool,
    windows: tuple[int | None, ...],
) -> DecoderConfig:
    """A pre-norm, rotary, gated decoder; `windows` has the sliding window of each layer."""
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    head_dim = hf.size("head_dim", width // heads)
    context_length = hf.size("max_position_embeddings")
    positions = read_rotary(hf, head_dim=head_dim, context_length=context_length)
    if positions.dim != head_dim:
        raise ConfigError(
            f"config.json: expected all {head_dim} channels of a head rotated, got "
            f"{positions.dim}. transformers ignores partial_rotary_factor here; remove it."
        )
    norm = NormConfig(kind="rms", eps=hf.get("rms_norm_eps", float, 1e-6))
    feed_forward = FeedForwardConfig(
        kind="gated",
        intermediate_size=hf.size("intermediate_size"),
        activation=read_activation(hf.get("hidden_act", str, "silu")),
        bias=mlp_bias,
    )
    kv_heads = hf.size("num_key_value_heads", heads)
    blocks = tuple(
        BlockConfig(
            attention=AttentionConfig(
                num_heads=heads,
                num_kv_heads=kv_heads,
                head_dim=head_dim,
                scale=head_dim**-0.5,
                qkv_bias=qkv_bias,
                out_bias=out_bias,
                sliding_window=window,
            ),
            feed_forward=feed_forward,
            norm=norm,
        )
        for window in windows
    )
    return DecoderConfig(
        model_type=model_type,
        vocab_size=hf.size("vocab_size"),
        hidden_size=width,
        context_length=context_length,
        positions=positions,
        blocks=blocks,
        final_norm=norm,
        tied_head=hf.get("tie_word_embeddings", bool, False),
        bos_token_id=hf.get("bos_token_id", int, None),
        eos_token_ids=hf.token_ids("eos_token_id"),
        pad_token_id=hf.get("pad_token_id", int, None),
    )


def hf_config(config: DecoderConfig) -> dict[str, object]:
    """The `config.json` of a Llama that computes what `config` says."""
    first = config.blocks[0]
    return llama_like_hf_config(config, architecture="LlamaForCausalLM") | {
        "attention_bias": first.attention.qkv_bias,
        "mlp_bias": first.dense.bias,
    }


def llama_like_hf_config(config: DecoderConfig, *, architecture: str) -> dict[str, object]:
    """The keys that Llama-like families share.

    Raises:
        ConfigError: the positions are not rotary.
    """
    first, positions = config.blocks[0], config.positions
    if not isinstance(positions, RotaryPositions):
        raise ConfigError(
            f"{config.model_type}: expected rotary positions, got {type(positions).__name__}. "
            "Save it as another family."
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
