"""Mixtures whose experts are chosen by sigmoids and a bias that balances their load.

DeepSeek V3 (DeepSeek-AI 2024) chooses so, and after it GLM 4.5 (GLM Team 2025), dots.llm1 (Huo et
al. 2025), Solar Open (Upstage 2026), K-EXAONE (LG AI Research 2026) and MiniMax M2 (MiniMax 2025).
"""

from ortolan.modeling.config import DecoderConfig, NoPositions
from ortolan.modeling.families import experts, llama
from ortolan.modeling.families.decoder import DecoderFormat
from ortolan.modeling.families.experts import (
    MIXTRAL_EXPERTS,
    QWEN3_MOE_WEIGHTS,
    SIGMOID_WEIGHTS,
    read_mixture,
    read_mlp_kinds,
    read_sigmoid_mixture,
    with_experts,
)
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.layer_kinds import (
    FULL,
    SLIDING,
    every,
    layers_of,
    read_layer_kinds,
    read_window,
    windows_of,
)
from ortolan.modeling.families.norms import rms
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.weights import Table


def _glm4_moe(hf: ConfigReader) -> DecoderConfig:
    config = DecoderFormat(
        qkv_bias="attention_bias",
        query_key_norm=hf.get("use_qk_norm", bool, False),
        norm=rms(1e-5),
        fraction=0.5,
    ).read(hf)
    dense = range(hf.get("first_k_dense_replace", int, 1))
    return with_experts(config, read_sigmoid_mixture(hf), dense=dense)


def _dots1(hf: ConfigReader) -> DecoderConfig:
    first, window = hf.get("max_window_layers", int, 62), read_window(hf, 4096)
    kinds = [SLIDING if window and i >= first else FULL for i in range(layers_of(hf))]
    config = DecoderFormat(
        bias="attention_bias",
        query_key_norm=True,
        windows=windows_of(read_layer_kinds(hf, kinds), window),
    ).read(hf)
    dense = range(hf.get("first_k_dense_replace", int, 0))
    return with_experts(config, read_sigmoid_mixture(hf), dense=dense)


def _solar_open(hf: ConfigReader) -> DecoderConfig:
    # Keys of dense layers, which transformers does not build.
    hf.skip("intermediate_size", "first_k_dense_replace")
    config = DecoderFormat(
        qkv_bias="attention_bias",
        head_dim=128,
        hidden=hf.size("moe_intermediate_size"),
        norm=rms(1e-5),
        theta=1_000_000.0,
        fraction=1.0,
    ).read(hf)
    return with_experts(config, read_sigmoid_mixture(hf))


def _exaone_moe(hf: ConfigReader) -> DecoderConfig:
    layers, window = layers_of(hf), read_window(hf, 4096)
    default = [FULL] * layers
    if "layer_types" in hf or window is None:
        hf.skip("sliding_window_pattern")
    else:
        default = every(hf, hf.size("sliding_window_pattern", 4))
    kinds = read_layer_kinds(hf, default)
    config = DecoderFormat(
        query_key_norm=True,
        windows=windows_of(kinds, window),
        norm=rms(1e-5),
        rotaries=[NoPositions() if window and kind == FULL else None for kind in kinds],
    ).read(hf)
    first = hf.get("first_k_dense_replace", int, 1)
    default = ["dense" if i < first else "sparse" for i in range(layers)]
    mixture = read_sigmoid_mixture(hf, count="num_experts", shared="num_shared_experts")
    return with_experts(config, mixture, dense=read_mlp_kinds(hf, default, layers=layers))


def _minimax_m2(hf: ConfigReader) -> DecoderConfig:
    # Keys of training, or that say the same as others.
    hf.skip("router_jitter_noise", "use_routing_bias", "scoring_func", "qk_norm_type")
    hf.require("use_qk_norm")
    head_dim = hf.size("head_dim", 128)
    config = DecoderFormat(
        head_dim=128,
        query_key_norm=True,
        attention={"norm_over": "all"},
        theta=5_000_000.0,
        fraction=hf.size("rotary_dim", head_dim) / head_dim,
    ).read(hf)
    mixture = read_mixture(hf, size="intermediate_size", score="sigmoid", selection_bias=True)
    return with_experts(config, mixture)


def _glm4_moe_weights(config: DecoderConfig) -> Table:
    # Layers after the last one predict further tokens, for drafts.
    return {**SIGMOID_WEIGHTS, f"model.layers.{len(config.blocks)}.*": None}


_EXAONE_MOE_WEIGHTS: Table = {
    **QWEN3_MOE_WEIGHTS,
    **experts.shared("mlp.shared_experts"),
    **experts.selection_bias("mlp.e_score_correction_bias"),
    # A layer that predicts a further token, for drafts.
    "mtp.*": None,
}

_MINIMAX_M2_WEIGHTS: Table = {
    **llama.WEIGHTS,
    **llama.QUERY_KEY_NORMS,
    **MIXTRAL_EXPERTS,
    **experts.selection_bias("block_sparse_moe.e_score_correction_bias"),
}

FAMILIES: dict[str, Family[DecoderConfig]] = {
    "glm4_moe": Family(config=_glm4_moe, weights=_glm4_moe_weights),
    "dots1": Family(config=_dots1, weights=SIGMOID_WEIGHTS),
    "solar_open": Family(config=_solar_open, weights=SIGMOID_WEIGHTS),
    "exaone_moe": Family(config=_exaone_moe, weights=_EXAONE_MOE_WEIGHTS),
    "minimax_m2": Family(config=_minimax_m2, weights=_MINIMAX_M2_WEIGHTS),
}
