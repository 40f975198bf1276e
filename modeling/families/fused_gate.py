"""Families whose checkpoints have gate and up in one matrix: Phi 3 and 4-mini, GLM 4.

Phi 3 (Abdin et al. 2024) has queries, keys and values in one, too, and stretches each wavelength by
a factor of its own for long contexts. GLM (GLM Team 2024) turns half of each head's channels,
neighbours together; its later checkpoints norm what leaves a sublayer, too.
"""

from typing import Any

from ortolan.modeling.config import DecoderConfig
from ortolan.modeling.families import llama
from ortolan.modeling.families.llama import LlamaFamily
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.rope import read_rotary
from ortolan.modeling.weights import Rows, Table, Target

_FUSED: Table = {
    **{
        name: target
        for name, target in llama.WEIGHTS.items()
        if "gate_proj" not in name and "up_proj" not in name
    },
    "model.layers.{}.mlp.gate_up_proj.weight": tuple(
        Target(
            f"blocks.{{}}.feed_forward.{ours}.weight", rows=Rows(1, 2, -1, ((place, place + 1),))
        )
        for place, ours in enumerate(("gate", "up"))
    ),
}

_PHI3: Table = {
    **{
        name: target
        for name, target in _FUSED.items()
        if not any(part in name for part in ("q_proj", "k_proj", "v_proj"))
    },
    "model.layers.{}.self_attn.qkv_proj.weight": Target("blocks.{}.attention.qkv.weight"),
}

_GLM4: Table = {
    **_FUSED,
    "model.layers.{}.post_self_attn_layernorm.weight": Target(
        "blocks.{}.attention_post_norm.weight"
    ),
    "model.layers.{}.post_mlp_layernorm.weight": Target("blocks.{}.feed_forward_post_norm.weight"),
}


def _phi3(hf: ConfigReader) -> DecoderConfig:
    hf.refuse("lm_head_bias")
    # Of the code beside the checkpoints, which nothing reads.
    hf.skip("full_attn_mod", "interpolate_factor")
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    positions = read_rotary(
        hf,
        head_dim=hf.size("head_dim", width // heads),
        context_length=hf.size("max_position_embeddings"),
    )
    windows = (hf.size("sliding_window", None),) * hf.size("num_hidden_layers", most=MAX_LAYERS)
    return llama.llama_like(hf, model_type="phi3", windows=windows, positions=positions, eps=1e-5)


def _glm_like(hf: ConfigReader, model_type: str, **block: Any) -> DecoderConfig:
    head_dim = hf.size("head_dim", 128)
    made = llama.llama_like(
        hf,
        model_type=model_type,
        qkv_bias=hf.get("attention_bias", bool, True),
        head_dim=128,
        positions=read_rotary(
            hf,
            head_dim=head_dim,
            context_length=hf.size("max_position_embeddings"),
            fraction=0.5,
            interleaved=True,
        ),
        eps=1.5625e-7,
    )
    return llama.altered(made, block=block)


def _glm(hf: ConfigReader) -> DecoderConfig:
    return _glm_like(hf, "glm")


def _glm4(hf: ConfigReader) -> DecoderConfig:
    return _glm_like(hf, "glm4", placement="sandwich")


PHI3 = LlamaFamily(config=_phi3, WEIGHTS=_PHI3)
GLM = LlamaFamily(config=_glm, WEIGHTS=_FUSED)
GLM4 = LlamaFamily(config=_glm4, WEIGHTS=_GLM4)
