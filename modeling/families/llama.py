"""Llama 2 and 3, TinyLlama, SmolLM2 (Touvron et al. 2023); the base of many families.

`llama_like` serves every family that differs from Llama by values alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from ortolan.modeling.config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    EncoderConfig,
    FeedForwardConfig,
    NoPositions,
    NormConfig,
    RotaryPositions,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.activations import read_activation, write_activation
from ortolan.modeling.families.gpt_like import gpt_like
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.rope import read_rotary, write_rotary
from ortolan.modeling.weights import Table, Target

C = TypeVar("C", DecoderConfig, DecoderConfig | EncoderConfig)

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
    )


def llama_like(
    hf: ConfigReader,
    *,
    model_type: str,
    qkv_bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
    windows: Sequence[int | None] | None = None,
    positions: RotaryPositions | None = None,
    theta: float = 10_000.0,
    head_dim: int | None = None,
    kind: Literal["gated", "mlp"] = "gated",
    activation: str = "silu",
    size: int | None = None,
    norm: NormConfig | None = None,
    eps: float = 1e-6,
    tied: bool = False,
) -> DecoderConfig:
    """A pre-norm, rotary decoder, gated unless its `kind` is another.

    Args:
        hf: the published config.
        model_type: of the family.
        qkv_bias: of queries, keys and values.
        out_bias: of the readout of the heads.
        mlp_bias: of the mlp.
        windows: the sliding window of each layer; None for none in any.
        positions: what the family makes of its keys; all channels rotated by default.
        theta: their base where the config has none.
        head_dim: channels of a head where the config does not say; an even share by default.
        kind: of the mlp.
        activation: its published name where the config has none.
        size: channels of the mlp; those of the config by default.
        norm: of every layer and before the head; the config's RMS norm by default.
        eps: of that norm where the config has none.
        tied: whether the head is the embedding where the config does not say.
    """
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    head_dim = hf.size("head_dim", width // heads if head_dim is None else head_dim)
    norm = norm or NormConfig(kind="rms", eps=hf.get("rms_norm_eps", float, eps))
    attention = AttentionConfig(
        num_heads=heads,
        num_kv_heads=hf.size("num_key_value_heads", heads),
        head_dim=head_dim,
        scale=head_dim**-0.5,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
    )
    mlp = _mlp(hf, kind, activation, size, bias=mlp_bias)
    block = BlockConfig(mixer=attention, feed_forward=mlp, norm=norm)
    return gpt_like(
        hf,
        model_type=model_type,
        width=width,
        context_length=hf.size("max_position_embeddings"),
        positions=positions or _rotate_all(hf, head_dim=head_dim, theta=theta),
        blocks=_layers(hf, block, windows),
        tied=tied,
    )


def _layers(
    hf: ConfigReader, block: BlockConfig, windows: Sequence[int | None] | None
) -> tuple[BlockConfig, ...]:
    """A block for each layer, with its window."""
    return tuple(
        replace(block, mixer=replace(block.attention, sliding_window=window))
        for window in windows or (None,) * hf.size("num_hidden_layers", most=MAX_LAYERS)
    )


def _mlp(
    hf: ConfigReader,
    kind: Literal["gated", "mlp"],
    activation: str,
    size: int | None,
    *,
    bias: bool,
) -> FeedForwardConfig:
    return FeedForwardConfig(
        kind=kind,
        intermediate_size=hf.size("intermediate_size") if size is None else size,
        activation=read_activation(hf.get("hidden_act", str, activation)),
        bias=bias,
    )


def _rotate_all(hf: ConfigReader, *, head_dim: int, theta: float) -> RotaryPositions:
    """The positions of a config; all channels of a head are rotated."""
    context_length = hf.size("max_position_embeddings")
    positions = read_rotary(hf, head_dim=head_dim, context_length=context_length, theta=theta)
    if positions.dim != head_dim:
        raise ConfigError(
            f"config.json: expected all {head_dim} channels of a head rotated, got "
            f"{positions.dim}. transformers ignores partial_rotary_factor here; remove it."
        )
    return positions


def altered(
    config: DecoderConfig,
    *,
    attention: Mapping[str, Any] | None = None,
    feed_forward: Mapping[str, Any] | None = None,
    block: Mapping[str, Any] | None = None,
    rotaries: Sequence[RotaryPositions | NoPositions | None] | None = None,
    **fields: Any,
) -> DecoderConfig:
    """The same decoder with other values of some fields.

    Args:
        config: what `llama_like` gives.
        attention: fields of every layer's attention.
        feed_forward: of every layer's mlp.
        block: of every layer.
        rotaries: the positions of each layer; None in it for the stack's.
        fields: of the decoder.
    """
    own = rotaries or [layer.attention.rotary for layer in config.blocks]
    blocks = tuple(
        replace(
            layer,
            mixer=replace(layer.attention, rotary=rotary, **(attention or {})),
            feed_forward=replace(layer.dense, **(feed_forward or {})),
            **(block or {}),
        )
        for layer, rotary in zip(config.blocks, own, strict=True)
    )
    return replace(config, blocks=blocks, **fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaFamily(Generic[C]):
    """A family that shares its file with others; see `families.Family`."""

    config: Callable[[ConfigReader], C]
    WEIGHTS: Table
    BASE_MODEL_PREFIX: str = BASE_MODEL_PREFIX


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
