"""Mixtures of experts that are chosen by sigmoids and a bias that balances their load.

So chooses DeepSeek V3 (DeepSeek-AI 2024), and after it GLM 4.5 (GLM Team 2025), dots.llm1 (Huo et
al. 2025), Solar Open (Upstage 2026), K-EXAONE (LG AI Research 2026) and MiniMax M2 (MiniMax 2025).
"""

from ortolan.modeling.config import DecoderConfig, NoPositions
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import experts, llama
from ortolan.modeling.families.experts import (
    MixtureFamily,
    read_mixture,
    read_sigmoid_mixture,
    with_experts,
)
from ortolan.modeling.families.layer_kinds import (
    FULL,
    SLIDING,
    every,
    read_layer_kinds,
    windows_of,
)
from ortolan.modeling.families.mixtures import QWEN3_MOE_WEIGHTS
from ortolan.modeling.families.qwen3 import QUERY_KEY_NORMS
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.rope import read_rotary
from ortolan.modeling.weights import Table


def _glm4_moe(hf: ConfigReader) -> DecoderConfig:
    head_dim = hf.size("head_dim", hf.size("hidden_size") // hf.size("num_attention_heads"))
    made = llama.llama_like(
        hf,
        model_type="glm4_moe",
        qkv_bias=hf.get("attention_bias", bool, False),
        positions=read_rotary(
            hf,
            head_dim=head_dim,
            context_length=hf.size("max_position_embeddings"),
            fraction=0.5,
        ),
        eps=1e-5,
    )
    if hf.get("use_qk_norm", bool, False):
        made = llama.altered(made, attention={"query_key_norm": made.final_norm})
    dense = range(hf.get("first_k_dense_replace", int, 1))
    return with_experts(made, read_sigmoid_mixture(hf), dense=dense)


def _dots1(hf: ConfigReader) -> DecoderConfig:
    layers = hf.size("num_hidden_layers", most=MAX_LAYERS)
    first = hf.get("max_window_layers", int, 62)
    window = hf.size("sliding_window", None) if "sliding_window" in hf else 4096
    kinds = [SLIDING if window and i >= first else FULL for i in range(layers)]
    bias = hf.get("attention_bias", bool, False)
    made = llama.llama_like(
        hf,
        model_type="dots1",
        qkv_bias=bias,
        out_bias=bias,
        windows=windows_of(read_layer_kinds(hf, kinds), window),
    )
    made = llama.altered(made, attention={"query_key_norm": made.final_norm})
    dense = range(hf.get("first_k_dense_replace", int, 0))
    return with_experts(made, read_sigmoid_mixture(hf), dense=dense)


def _solar_open(hf: ConfigReader) -> DecoderConfig:
    # Of dense layers, which transformers does not make.
    hf.skip("intermediate_size", "first_k_dense_replace")
    made = llama.llama_like(
        hf,
        model_type="solar_open",
        qkv_bias=hf.get("attention_bias", bool, False),
        positions=read_rotary(
            hf,
            head_dim=hf.size("head_dim", 128),
            context_length=hf.size("max_position_embeddings"),
            theta=1_000_000.0,
        ),
        head_dim=128,
        size=hf.size("moe_intermediate_size"),
        eps=1e-5,
    )
    return with_experts(made, read_sigmoid_mixture(hf))


def _exaone_moe(hf: ConfigReader) -> DecoderConfig:
    window = hf.size("sliding_window", None) if "sliding_window" in hf else 4096
    layers = hf.size("num_hidden_layers", most=MAX_LAYERS)
    if "layer_types" in hf or window is None:
        hf.skip("sliding_window_pattern")
        kinds = read_layer_kinds(hf, [FULL] * layers)
    else:
        kinds = tuple(every(hf, hf.size("sliding_window_pattern", 4)))
    made = llama.llama_like(
        hf, model_type="exaone_moe", eps=1e-5, windows=windows_of(kinds, window)
    )
    made = llama.altered(
        made,
        attention={"query_key_norm": made.final_norm},
        rotaries=[NoPositions() if window and kind == FULL else None for kind in kinds],
    )
    first = hf.get("first_k_dense_replace", int, 1)
    named = hf.get(
        "mlp_layer_types", list, ["dense" if i < first else "sparse" for i in range(layers)]
    )
    if len(named) != layers or not all(kind in ("dense", "sparse") for kind in named):
        raise ConfigError(
            f"{hf.name}: expected mlp_layer_types to hold dense or sparse for {layers} layers, got "
            f"{named!r:.80}. This checkpoint cannot be loaded faithfully."
        )
    mixture = read_sigmoid_mixture(hf, count="num_experts", shared="num_shared_experts")
    dense = {i for i, kind in enumerate(named) if kind == "dense"}
    return with_experts(made, mixture, dense=dense)


def _minimax_m2(hf: ConfigReader) -> DecoderConfig:
    # Of training, or what other keys say too.
    hf.skip("router_jitter_noise", "use_routing_bias", "scoring_func", "qk_norm_type")
    hf.require("use_qk_norm")
    head_dim = hf.size("head_dim", 128)
    made = llama.llama_like(
        hf,
        model_type="minimax_m2",
        positions=read_rotary(
            hf,
            head_dim=head_dim,
            context_length=hf.size("max_position_embeddings"),
            theta=5_000_000.0,
            fraction=hf.size("rotary_dim", head_dim) / head_dim,
        ),
        head_dim=128,
    )
    attention = {"query_key_norm": made.final_norm, "norm_over": "all"}
    mixture = read_mixture(hf, size="intermediate_size", score="sigmoid", selection_bias=True)
    return with_experts(llama.altered(made, attention=attention), mixture)


_ROUTED: Table = {**QWEN3_MOE_WEIGHTS, **experts.shared("mlp.shared_experts")}

SIGMOID_WEIGHTS: Table = {
    **_ROUTED,
    **experts.selection_bias("mlp.gate.e_score_correction_bias"),
}


def _glm4_moe_weights(config: DecoderConfig) -> Table:
    # Layers after the last one predict further tokens, to draft with.
    return {**SIGMOID_WEIGHTS, f"model.layers.{len(config.blocks)}.*": None}


GLM4_MOE = MixtureFamily(config=_glm4_moe, WEIGHTS=_glm4_moe_weights)
DOTS1 = MixtureFamily(config=_dots1, WEIGHTS=SIGMOID_WEIGHTS)
SOLAR_OPEN = MixtureFamily(config=_solar_open, WEIGHTS=SIGMOID_WEIGHTS)
EXAONE_MOE = MixtureFamily(
    config=_exaone_moe,
    WEIGHTS={
        **_ROUTED,
        **experts.selection_bias("mlp.e_score_correction_bias"),
        # A layer that predicts a further token, to draft with.
        "mtp.*": None,
    },
)
MINIMAX_M2 = MixtureFamily(
    config=_minimax_m2,
    WEIGHTS={
        **llama.WEIGHTS,
        **QUERY_KEY_NORMS,
        **experts.router("block_sparse_moe.gate.weight"),
        **experts.apart("block_sparse_moe.experts", gate="w1", up="w3", down="w2"),
        **experts.selection_bias("block_sparse_moe.e_score_correction_bias"),
    },
)
