"""Families that are Llama but for a few values of their configs.

Seed-OSS (ByteDance 2025), CWM (Meta 2025), Ministral (Mistral AI 2024) and Ministral 3 (2025),
InternLM 3 (Shanghai AI Laboratory 2025), IQuest-Coder (2026), ERNIE 4.5 (Baidu 2025), Helium
(Kyutai 2025), Hunyuan (Tencent 2025).
"""

from typing import Any

from ortolan.modeling.config import DecoderConfig, RotaryPositions
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import llama
from ortolan.modeling.families.layer_kinds import FULL, SLIDING, read_layer_kinds, windows_of
from ortolan.modeling.families.llama import LlamaFamily
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.rope import read_rotary
from ortolan.modeling.weights import Target


def _seed_oss(hf: ConfigReader) -> DecoderConfig:
    return llama.llama_like(
        hf,
        model_type="seed_oss",
        qkv_bias=hf.get("attention_bias", bool, True),
        out_bias=hf.get("attention_out_bias", bool, False),
        mlp_bias=hf.get("mlp_bias", bool, False),
        head_dim=128,
    )


def _cwm(hf: ConfigReader) -> DecoderConfig:
    _require_rope(hf)
    window = hf.size("sliding_window", None) if "sliding_window" in hf else 8192
    layers = hf.size("num_hidden_layers", most=MAX_LAYERS)
    kinds = read_layer_kinds(hf, [SLIDING if i % 4 else FULL for i in range(layers)])
    return llama.llama_like(
        hf,
        model_type="cwm",
        mlp_bias=hf.get("mlp_bias", bool, False),
        windows=windows_of(kinds, window),
        theta=1_000_000.0,
        head_dim=128,
        eps=1e-5,
    )


def _ministral(hf: ConfigReader) -> DecoderConfig:
    window = hf.size("sliding_window", None) if "sliding_window" in hf else 4096
    layers = hf.size("num_hidden_layers", most=MAX_LAYERS)
    kinds = read_layer_kinds(hf, [FULL if window is None else SLIDING] * layers)
    return llama.llama_like(hf, model_type="ministral", windows=windows_of(kinds, window))


def _ministral3(hf: ConfigReader) -> DecoderConfig:
    _require_rope(hf)
    rope = hf.nested("rope_scaling") or hf.nested("rope_parameters") or ConfigReader({})
    # A copy of the config's own.
    rope.skip("max_position_embeddings")
    windows = (hf.size("sliding_window", None),) * hf.size("num_hidden_layers", most=MAX_LAYERS)
    made = llama.llama_like(
        hf, model_type="ministral3", windows=windows, theta=1e6, head_dim=128, eps=1e-5
    )
    if not rope.get("llama_4_scaling_beta", float, 0.0):
        return made
    # Queries of later tokens would be scaled, which no field says: the context ends before them.
    original = rope.size("original_max_position_embeddings")
    return llama.altered(made, context_length=min(made.context_length, original))


def _internlm3(hf: ConfigReader) -> DecoderConfig:
    bias = hf.get("attention_bias", bool, hf.get("qkv_bias", bool, False))
    return llama.llama_like(
        hf,
        model_type="internlm3",
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=hf.get("mlp_bias", bool, hf.get("bias", bool, False)),
        head_dim=128,
        eps=1e-5,
    )


def _iquestcoder(hf: ConfigReader) -> DecoderConfig:
    hf.refuse("use_sliding_window")
    bias = hf.get("attention_bias", bool, False)
    return llama.llama_like(
        hf,
        model_type="iquestcoder",
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=hf.get("mlp_bias", bool, False),
        head_dim=128,
        eps=1e-5,
    )


def _interleaved(hf: ConfigReader, *, head_dim: int, theta: float, **fields: Any) -> DecoderConfig:
    """One whose neighbouring channels are turned together."""
    positions = read_rotary(
        hf,
        head_dim=hf.size("head_dim", head_dim),
        context_length=hf.size("max_position_embeddings"),
        theta=theta,
        interleaved=True,
    )
    return llama.llama_like(hf, positions=positions, head_dim=head_dim, **fields)


def _ernie4_5(hf: ConfigReader) -> DecoderConfig:
    bias = hf.get("use_bias", bool, False)
    return _interleaved(
        hf,
        head_dim=128,
        theta=500_000.0,
        model_type="ernie4_5",
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        eps=1e-5,
        tied=True,
    )


def _helium(hf: ConfigReader) -> DecoderConfig:
    return _interleaved(
        hf,
        head_dim=128,
        theta=100_000.0,
        model_type="helium",
        qkv_bias=hf.get("attention_bias", bool, False),
        mlp_bias=hf.get("mlp_bias", bool, False),
        eps=1e-8,
    )


def _hunyuan(hf: ConfigReader) -> DecoderConfig:
    hf.skip("eod_token_id", "im_start_id", "im_end_id", "im_newline_id", "mask_init_id", "pad_id")
    hf.skip("text_start_id", "text_end_id", "org_vocab_size", "attention_head_dim")
    hf.skip("cla_share_factor", "num_experts", "norm_type", "class_num", "dense_list", "pool_type")
    hf.refuse("add_classification_head")
    hf.require("use_qk_norm")
    hf.require("use_rotary_pos_emb")
    hf.refuse("use_cla")
    bias = hf.get("attention_bias", bool, False)
    made = llama.llama_like(
        hf,
        model_type="hunyuan_v1_dense",
        qkv_bias=bias,
        out_bias=bias,
        eps=1e-5,
        positions=_stretched(hf),
    )
    return llama.altered(
        made, attention={"query_key_norm": made.final_norm, "norm_after_rotary": True}
    )


def _stretched(hf: ConfigReader) -> RotaryPositions | None:
    """Positions whose base is larger, by a power of `alpha`, at any length."""
    rope = hf.nested("rope_scaling") or hf.nested("rope_parameters")
    alpha = None if rope is None else rope.get("alpha", float, None)
    kind = None if rope is None else rope.get("rope_type", str, None) or rope.get("type", str, None)
    if rope is None or not alpha or kind != "dynamic":
        return None
    rope.skip("type", "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
    dim = hf.size("head_dim", hf.size("hidden_size") // hf.size("num_attention_heads"))
    theta = rope.get("rope_theta", float, hf.get("rope_theta", float, 10_000.0))
    return RotaryPositions(dim=dim, theta=theta * alpha ** (dim / (dim - 2)))


def _require_rope(hf: ConfigReader) -> None:
    """Raise ConfigError where transformers would take a scaling that this file does not repeat."""
    if not any(hf.nested(key) for key in ("rope_scaling", "rope_parameters")):
        raise ConfigError(
            f"{hf.name}: expected rope_parameters or rope_scaling, got neither. "
            "Copy it from the model's published config."
        )


_HUNYUAN = {
    "model.layers.{}.self_attn.query_layernorm.weight": Target(
        "blocks.{}.attention.query_norm.weight"
    ),
    "model.layers.{}.self_attn.key_layernorm.weight": Target("blocks.{}.attention.key_norm.weight"),
}

SEED_OSS = LlamaFamily(config=_seed_oss, WEIGHTS=llama.WEIGHTS)
CWM = LlamaFamily(config=_cwm, WEIGHTS=llama.WEIGHTS)
MINISTRAL = LlamaFamily(config=_ministral, WEIGHTS=llama.WEIGHTS)
MINISTRAL3 = LlamaFamily(config=_ministral3, WEIGHTS=llama.WEIGHTS)
INTERNLM3 = LlamaFamily(config=_internlm3, WEIGHTS=llama.WEIGHTS)
IQUESTCODER = LlamaFamily(config=_iquestcoder, WEIGHTS=llama.WEIGHTS)
ERNIE4_5 = LlamaFamily(config=_ernie4_5, WEIGHTS=llama.WEIGHTS)
HELIUM = LlamaFamily(config=_helium, WEIGHTS=llama.WEIGHTS)
HUNYUAN_V1_DENSE = LlamaFamily(config=_hunyuan, WEIGHTS={**llama.WEIGHTS, **_HUNYUAN})
