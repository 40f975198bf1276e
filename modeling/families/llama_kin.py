"""Families that are Llama but for a few values or parts.

Seed-OSS (ByteDance 2025), ERNIE 4.5 (Baidu 2025), Hunyuan (Tencent 2025), SmolLM3 (Bakouch et al.
2025).

Phi 3 and 4-mini (Abdin et al. 2024) have fused matrices; Command R (Cohere 2024) and StableLM 2
(Bellagente et al. 2024) have layer norms.
"""

from dataclasses import replace

from ortolan.modeling.config import DecoderConfig, NoPositions, RotaryPositions
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import llama
from ortolan.modeling.families.decoder import DecoderFormat, Keys, altered
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.layer_kinds import (
    FULL,
    SLIDING,
    every,
    layers_of,
    one_window,
    read_layer_kinds,
    read_window,
    windows_of,
)
from ortolan.modeling.families.llama import LLAMA
from ortolan.modeling.families.norms import layer_norm, rms
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.tables import NORM_1, NORM_2, QKV, gate_up, layer, linear, without
from ortolan.modeling.weights import Table, Target


def hunyuan(hf: ConfigReader) -> DecoderConfig:
    """Hunyuan, without experts."""
    hf.skip("eod_token_id", "im_start_id", "im_end_id", "im_newline_id", "mask_init_id", "pad_id")
    hf.skip("text_start_id", "text_end_id", "org_vocab_size", "attention_head_dim")
    hf.skip("cla_share_factor", "num_experts", "norm_type", "class_num", "dense_list", "pool_type")
    hf.refuse("add_classification_head")
    hf.require("use_qk_norm")
    hf.require("use_rotary_pos_emb")
    hf.refuse("use_cla")
    return DecoderFormat(
        bias="attention_bias",
        query_key_norm=True,
        attention={"norm_after_rotary": True},
        norm=rms(1e-5),
        positions=_hunyuan_positions(hf),
    ).read(hf)


def _hunyuan_positions(hf: ConfigReader) -> RotaryPositions | None:
    """Positions whose base is raised by a power of `alpha`, whatever the length."""
    rope = hf.nested("rope_scaling") or hf.nested("rope_parameters")
    alpha = None if rope is None else rope.get("alpha", float, None)
    kind = None if rope is None else rope.get("rope_type", str, None) or rope.get("type", str, None)
    if rope is None or not alpha or kind != "dynamic":
        return None
    rope.skip("type", "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
    dim = hf.size("head_dim", hf.size("hidden_size") // hf.size("num_attention_heads"))
    theta = rope.get("rope_theta", float, hf.get("rope_theta", float, 10_000.0))
    return RotaryPositions(dim=dim, theta=theta * alpha ** (dim / (dim - 2)))


HUNYUAN_WEIGHTS: Table = {
    **llama.WEIGHTS,
    **{
        f"model.layers.{{}}.self_attn.{part}_layernorm.weight": Target(
            f"blocks.{{}}.attention.{part}_norm.weight"
        )
        for part in ("query", "key")
    },
}


def _smollm3(hf: ConfigReader) -> DecoderConfig:
    """Llama without positions in every fourth layer."""
    hf.skip("max_window_layers")
    layers, period = layers_of(hf), hf.size("no_rope_layer_interval", 4)
    rotated = hf.get("no_rope_layers", list, [int((i + 1) % period != 0) for i in range(layers)])
    if len(rotated) < layers or not all(flag in (0, 1) for flag in rotated):
        raise ConfigError(
            f"{hf.name}: no_rope_layers must hold 0 or 1 for {layers} layers (got "
            f"{rotated!r:.80}). Correct it."
        )
    window = hf.size("sliding_window", None)
    used = hf.get("use_sliding_window", bool, False) and window is not None
    default = [SLIDING if used and not flag else FULL for flag in rotated[:layers]]
    return replace(
        LLAMA,
        windows=windows_of(read_layer_kinds(hf, default), window if used else None),
        theta=2_000_000.0,
        rotaries=[None if flag else NoPositions() for flag in rotated[:layers]],
        tied=True,
    ).read(hf)


_PHI3_WEIGHTS: Table = {
    **without(llama.WEIGHTS, "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"),
    "model.layers.{}.self_attn.qkv_proj.weight": Target(f"blocks.{{}}.{QKV}.weight"),
    "model.layers.{}.mlp.gate_up_proj.weight": gate_up("blocks.{}.feed_forward"),
}


def _phi3(hf: ConfigReader) -> DecoderConfig:
    hf.refuse("lm_head_bias")
    # Keys of the code that comes with the checkpoints, which nothing reads.
    hf.skip("full_attn_mod", "interpolate_factor")
    return DecoderFormat(windows=one_window, norm=rms(1e-5), fraction=1.0).read(hf)


_COHERE_WEIGHTS = without(llama.WEIGHTS, "post_attention")


def _cohere(
    hf: ConfigReader, theta: float = 500_000.0, windows: tuple[int | None, ...] | None = None
) -> DecoderConfig:
    """Attention and MLP in parallel after one layer norm."""
    # What every model of the family has.
    hf.require("use_parallel_block")
    hf.require("use_gated_activation")
    hf.require("use_embedding_sharing")
    hf.refuse("use_qk_norm")
    hf.skip("use_parallel_embedding", "position_embedding_type", "rotary_pct")
    hf.skip("layer_switch", "order_of_interleaved_layers")
    return DecoderFormat(
        keys=Keys(eps="layer_norm_eps"),
        bias="attention_bias",
        windows=windows,
        norm=layer_norm(1e-5, bias=False),
        placement="parallel",
        theta=theta,
        interleaved=True,
        tied=True,
        decoder={"head_scale": hf.get("logit_scale", float, 0.0625)},
    ).read(hf)


def _cohere2(hf: ConfigReader) -> DecoderConfig:
    """Windows in most layers; the others have no positions."""
    kinds = read_layer_kinds(hf, every(hf, hf.size("sliding_window_pattern", 4)))
    windows = windows_of(kinds, read_window(hf, 4096))
    config = _cohere(hf, theta=10_000.0, windows=windows)
    return altered(config, rotaries=[None if window else NoPositions() for window in windows])


_STABLELM_WEIGHTS: Table = {
    **llama.WEIGHTS,
    **layer("model.layers.{}.", {"input_layernorm": NORM_1, "post_attention_layernorm": NORM_2}),
    **linear({"model.norm": "final_norm"}),
}


def _stablelm(hf: ConfigReader) -> DecoderConfig:
    # A norm of its own for each head.
    hf.refuse("qk_layernorm")
    hf.skip("norm_eps", "rotary_scaling_factor")
    parallel = hf.get("use_parallel_residual", bool, False)
    return DecoderFormat(
        keys=Keys(head_dim=None, eps="layer_norm_eps"),
        qkv_bias="use_qkv_bias",
        kv_heads=hf.size("num_key_value_heads"),
        norm=layer_norm(1e-5),
        placement="parallel" if parallel else "pre",
        fraction=0.25,
    ).read(hf)


FAMILIES: dict[str, Family[DecoderConfig]] = {
    "seed_oss": Family(
        config=DecoderFormat(
            qkv_bias=("attention_bias", True),
            out_bias="attention_out_bias",
            mlp_bias="mlp_bias",
            head_dim=128,
        ).read,
        weights=llama.WEIGHTS,
    ),
    "ernie4_5": Family(
        config=DecoderFormat(
            bias="use_bias",
            mlp_bias="use_bias",
            head_dim=128,
            norm=rms(1e-5),
            theta=500_000.0,
            interleaved=True,
            tied=True,
        ).read,
        weights=llama.WEIGHTS,
    ),
    "hunyuan_v1_dense": Family(config=hunyuan, weights=HUNYUAN_WEIGHTS),
    "smollm3": Family(config=_smollm3, weights=llama.WEIGHTS),
    "phi3": Family(config=_phi3, weights=_PHI3_WEIGHTS),
    "cohere": Family(config=_cohere, weights=_COHERE_WEIGHTS),
    "cohere2": Family(config=_cohere2, weights=_COHERE_WEIGHTS),
    "stablelm": Family(config=_stablelm, weights=_STABLELM_WEIGHTS),
}
