"""OLMo 1 to 3 (Groeneveld et al. 2024, OLMo Team 2024, 2025) and EXAONE 4 (LG AI Research 2025).

OLMo has layer norms without weights, and may bound queries, keys and values. OLMo 2 norms what
leaves a sublayer and not what enters it, and queries and keys over all heads at once; OLMo 3 sees
a window in most layers, whose positions are not scaled. EXAONE 4 norms each head, and its layers
that see all have no positions beside others with a window.
"""

from ortolan.modeling.config import DecoderConfig, NoPositions, NormConfig
from ortolan.modeling.families import llama
from ortolan.modeling.families.layer_kinds import (
    FULL,
    SLIDING,
    every,
    read_layer_kinds,
    windows_of,
)
from ortolan.modeling.families.llama import LlamaFamily
from ortolan.modeling.families.qwen3 import QUERY_KEY_NORMS
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.rope import read_rotaries
from ortolan.modeling.weights import Target

_INNER_POST = {
    name: target
    for name, target in llama.WEIGHTS.items()
    if "input_layernorm" not in name and "post_attention" not in name
} | {
    "model.layers.{}.post_attention_layernorm.weight": Target("blocks.{}.attention_norm.weight"),
    "model.layers.{}.post_feedforward_layernorm.weight": Target(
        "blocks.{}.feed_forward_norm.weight"
    ),
    **QUERY_KEY_NORMS,
}


def _olmo(hf: ConfigReader) -> DecoderConfig:
    bias = hf.get("attention_bias", bool, False)
    made = llama.llama_like(
        hf,
        model_type="olmo",
        qkv_bias=bias,
        out_bias=bias,
        norm=NormConfig(kind="layer", eps=1e-5, scale=False, bias=False),
    )
    return llama.altered(made, attention={"clip": hf.get("clip_qkv", float, None)})


def _olmo2(hf: ConfigReader) -> DecoderConfig:
    bias = hf.get("attention_bias", bool, False)
    made = llama.llama_like(hf, model_type="olmo2", qkv_bias=bias, out_bias=bias, eps=1e-5)
    return _inner_post(made, over="all")


def _olmo3(hf: ConfigReader) -> DecoderConfig:
    window = hf.size("sliding_window", None) if "sliding_window" in hf else 4096
    kinds = read_layer_kinds(hf, every(hf, 4))
    bias = hf.get("attention_bias", bool, False)
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    rotaries = read_rotaries(
        hf,
        # Both have the one base that older configs name.
        {FULL: ("rope_theta", 500_000.0), SLIDING: ("rope_theta", 500_000.0)},
        head_dim=hf.size("head_dim", width // heads),
        context_length=hf.size("max_position_embeddings"),
    )
    made = llama.llama_like(
        hf,
        model_type="olmo3",
        qkv_bias=bias,
        out_bias=bias,
        eps=1e-5,
        windows=windows_of(kinds, window),
        positions=rotaries[FULL],
    )
    made = llama.altered(
        made, rotaries=[None if kind == FULL else rotaries[SLIDING] for kind in kinds]
    )
    return _inner_post(made, over="all")


def _exaone4(hf: ConfigReader) -> DecoderConfig:
    window = hf.size("sliding_window", None) if "sliding_window" in hf else 4096
    default = [FULL] * hf.size("num_hidden_layers", most=MAX_LAYERS)
    if "layer_types" in hf or window is None:
        hf.skip("sliding_window_pattern")
    else:
        default = every(hf, hf.size("sliding_window_pattern", 4))
    kinds = read_layer_kinds(hf, default)
    made = llama.llama_like(hf, model_type="exaone4", eps=1e-5, windows=windows_of(kinds, window))
    unrotated = [window is not None and kind == FULL for kind in kinds]
    made = llama.altered(made, rotaries=[NoPositions() if none else None for none in unrotated])
    return _inner_post(made, over="head")


def _inner_post(made: DecoderConfig, *, over: str) -> DecoderConfig:
    return llama.altered(
        made,
        attention={"query_key_norm": made.final_norm, "norm_over": over},
        block={"placement": "inner_post"},
    )


OLMO = LlamaFamily(config=_olmo, WEIGHTS=llama.WEIGHTS)
OLMO2 = LlamaFamily(config=_olmo2, WEIGHTS=_INNER_POST)
OLMO3 = LlamaFamily(config=_olmo3, WEIGHTS=_INNER_POST)
EXAONE4 = LlamaFamily(config=_exaone4, WEIGHTS=_INNER_POST)
