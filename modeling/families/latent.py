"""Families whose queries, keys and values are made of latents: Youtu (2025), MiniCPM 3 (2024).

The latents are DeepSeek's (DeepSeek-AI 2024). MiniCPM 3 scales embeddings, what its sublayers add,
and what enters the head.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ortolan.modeling.config import DecoderConfig, LatentConfig, NormConfig
from ortolan.modeling.families import llama
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.rope import read_rotary
from ortolan.modeling.weights import Table, Target

_ATTENTION = {
    "q_proj": "query",
    "q_a_proj": "query_latent",
    "q_a_layernorm": "query_norm",
    "q_b_proj": "query",
    "kv_a_proj_with_mqa": "latent",
    "kv_a_layernorm": "norm",
    "kv_b_proj": "key_value",
}
"""Published modules, and ours in the projection of an attention."""


def latent_weights(config: DecoderConfig) -> dict[str, Target | None]:
    """Published names to ours; queries have one of two names, by whether they are of latents."""
    latent = config.blocks[0].attention.latent
    direct = latent is not None and latent.query_rank is None
    unused = ("q_a_proj", "q_a_layernorm", "q_b_proj") if direct else ("q_proj",)
    own = {
        f"model.layers.{{}}.self_attn.{theirs}.{kind}": Target(
            f"blocks.{{}}.attention.qkv.{ours}.{kind}"
        )
        for theirs, ours in _ATTENTION.items()
        if theirs not in unused
        for kind in ("weight", "bias")
    }
    others = {
        name: target
        for name, target in llama.WEIGHTS.items()
        if not any(f".{part}_proj." in name for part in "qkv")
    }
    return {**others, **own}


def latent_like(
    hf: ConfigReader, *, model_type: str, interleaved: bool, eps: float, tied: bool
) -> DecoderConfig:
    """A Llama whose attention has latents; `head_dim` of its config is that of the rotated part."""
    hf.skip("qk_head_dim")
    rotated = hf.size("qk_rope_head_dim")
    head_dim = hf.size("qk_nope_head_dim") + rotated
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    bias = hf.get("attention_bias", bool, False)
    positions = read_rotary(
        hf,
        head_dim=rotated,
        context_length=hf.size("max_position_embeddings"),
        interleaved=interleaved,
    )
    made = llama.llama_like(
        hf,
        model_type=model_type,
        out_bias=bias,
        mlp_bias=hf.get("mlp_bias", bool, False),
        positions=positions,
        head_dim=head_dim,
        eps=eps,
        tied=tied,
    )
    return llama.altered(
        made,
        attention={
            "head_dim": head_dim,
            "scale": head_dim**-0.5 * _warmth(hf) ** 2,
            "value_dim": hf.size("v_head_dim", width // heads),
            "latent": LatentConfig(
                query_rank=hf.size("q_lora_rank", None),
                rank=hf.size("kv_lora_rank"),
                rotated=rotated,
                norm=NormConfig(kind="rms", eps=1e-6),
                bias=bias,
            ),
        },
    )


def _warmth(hf: ConfigReader) -> float:
    """What queries and keys are multiplied by where positions are scaled (Peng et al. 2023)."""
    rope = hf.nested("rope_scaling") or hf.nested("rope_parameters") or ConfigReader({})
    kind = rope.get("rope_type", str, None) or rope.get("type", str, "default")
    weight = rope.get("mscale_all_dim", float, 0.0)
    if kind == "default" or not weight:
        return 1.0
    factor = rope.get("factor", float)
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _youtu(hf: ConfigReader) -> DecoderConfig:
    hf.skip("embedding_initializer_range")
    interleaved = hf.get("rope_interleave", bool, True)
    return latent_like(hf, model_type="youtu", interleaved=interleaved, eps=1e-6, tied=True)


def _minicpm3(hf: ConfigReader) -> DecoderConfig:
    made = latent_like(hf, model_type="minicpm3", interleaved=False, eps=1e-5, tied=True)
    layers = len(made.blocks)
    depth = hf.get("scale_depth", float, None) if "scale_depth" in hf else 1.4
    base = hf.size("dim_model_base", None) if "dim_model_base" in hf else 256
    return llama.altered(
        made,
        block={"residual_scale": 1.0 if depth is None else depth / math.sqrt(layers)},
        embedding_scale=hf.get("scale_emb", float, 12.0),
        head_scale=1.0 if base is None else base / made.hidden_size,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentFamily:
    """A family of this file; see `families.Family`."""

    config: Callable[[ConfigReader], DecoderConfig]
    WEIGHTS: Callable[[DecoderConfig], Table] = latent_weights
    BASE_MODEL_PREFIX: str = llama.BASE_MODEL_PREFIX


YOUTU = LatentFamily(config=_youtu)
MINICPM3 = LatentFamily(config=_minicpm3)
