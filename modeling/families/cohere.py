"""Command R (Cohere 2024) and Command R7B: attention and mlp side by side after one layer norm.

Neighbouring channels are turned together. The second generation sees a window in most layers, and
those that see all have no positions.
"""

from collections.abc import Sequence

from ortolan.modeling.config import DecoderConfig, NoPositions, NormConfig
from ortolan.modeling.families import llama
from ortolan.modeling.families.layer_kinds import every, read_layer_kinds, windows_of
from ortolan.modeling.families.llama import LlamaFamily
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.rope import read_rotary

_WEIGHTS = {name: target for name, target in llama.WEIGHTS.items() if "post_attention" not in name}


def _cohere_like(
    hf: ConfigReader, *, model_type: str, theta: float, windows: Sequence[int | None] | None = None
) -> DecoderConfig:
    # What every model of the family has.
    hf.require("use_parallel_block")
    hf.require("use_gated_activation")
    hf.require("use_embedding_sharing")
    hf.refuse("use_qk_norm")
    hf.skip("use_parallel_embedding", "position_embedding_type", "rotary_pct")
    hf.skip("layer_switch", "order_of_interleaved_layers")
    bias = hf.get("attention_bias", bool, False)
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    norm = NormConfig(kind="layer", eps=hf.get("layer_norm_eps", float, 1e-5), bias=False)
    made = llama.llama_like(
        hf,
        model_type=model_type,
        qkv_bias=bias,
        out_bias=bias,
        windows=windows,
        positions=read_rotary(
            hf,
            head_dim=hf.size("head_dim", width // heads),
            context_length=hf.size("max_position_embeddings"),
            theta=theta,
            interleaved=True,
        ),
        norm=norm,
        tied=True,
    )
    scale = hf.get("logit_scale", float, 0.0625)
    return llama.altered(made, block={"placement": "parallel"}, head_scale=scale)


def _cohere(hf: ConfigReader) -> DecoderConfig:
    return _cohere_like(hf, model_type="cohere", theta=500_000.0)


def _cohere2(hf: ConfigReader) -> DecoderConfig:
    window = hf.size("sliding_window", None) if "sliding_window" in hf else 4096
    kinds = read_layer_kinds(hf, every(hf, hf.size("sliding_window_pattern", 4)))
    windows = windows_of(kinds, window)
    made = _cohere_like(hf, model_type="cohere2", theta=10_000.0, windows=windows)
    rotaries = [None if window else NoPositions() for window in windows]
    return llama.altered(made, rotaries=rotaries)


COHERE = LlamaFamily(config=_cohere, WEIGHTS=_WEIGHTS)
COHERE2 = LlamaFamily(config=_cohere2, WEIGHTS=_WEIGHTS)
