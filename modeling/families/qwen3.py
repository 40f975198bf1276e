"""Qwen3 (Yang et al. 2025): Qwen2 without biases, its queries and keys normed head by head."""

from ortolan.modeling.config import DecoderConfig
from ortolan.modeling.families import llama
from ortolan.modeling.families.qwen2 import read_windows
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.weights import Target

BASE_MODEL_PREFIX = llama.BASE_MODEL_PREFIX

QUERY_KEY_NORMS = {
    "model.layers.{}.self_attn.q_norm.weight": Target("blocks.{}.attention.query_norm.weight"),
    "model.layers.{}.self_attn.k_norm.weight": Target("blocks.{}.attention.key_norm.weight"),
}

WEIGHTS = llama.WEIGHTS | QUERY_KEY_NORMS


def config(hf: ConfigReader) -> DecoderConfig:
    """A `Qwen3Config` of Hugging Face as a `DecoderConfig`."""
    bias = hf.get("attention_bias", bool, False)
    made = llama.llama_like(
        hf,
        model_type="qwen3",
        qkv_bias=bias,
        out_bias=bias,
        head_dim=128,
        windows=read_windows(hf),
    )
    return llama.altered(made, attention={"query_key_norm": made.final_norm})
