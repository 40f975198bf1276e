"""Decoders with mixtures of experts: what each adds to a family without them.

Mixtral (Jiang et al. 2024), Qwen 2 and 3 MoE (Yang et al. 2024, 2025), OLMoE (Muennighoff et al.
2024), FlexOlmo (Shi et al. 2025), Phi 3.5 MoE (Abdin et al. 2024), Granite MoE (IBM 2024),
gpt-oss (OpenAI 2025), ERNIE 4.5 (Baidu 2025), Hunyuan A13B (Tencent 2025).
"""

from dataclasses import replace
from typing import Any

from ortolan.modeling.config import DecoderConfig, LongRopeScaling, NormConfig, RotaryPositions
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import experts, granite, llama, llama_values, olmo
from ortolan.modeling.families.experts import MixtureFamily, read_mixture, with_experts
from ortolan.modeling.families.layer_kinds import FULL, SLIDING, read_layer_kinds, windows_of
from ortolan.modeling.families.qwen3 import QUERY_KEY_NORMS
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.rope import read_rotary
from ortolan.modeling.weights import Rows, Table, Target


def _windows(hf: ConfigReader) -> list[int | None]:
    """One window for all layers, or none."""
    return [hf.size("sliding_window", None)] * hf.size("num_hidden_layers", most=MAX_LAYERS)


def _mixtral(hf: ConfigReader) -> DecoderConfig:
    hf.skip("router_jitter_noise")
    made = llama.llama_like(
        hf, model_type="mixtral", windows=_windows(hf), theta=1_000_000.0, eps=1e-5
    )
    return with_experts(made, read_mixture(hf, size="intermediate_size"))


def _phimoe(hf: ConfigReader) -> DecoderConfig:
    hf.skip("input_jitter_noise")
    bias = hf.get("attention_bias", bool, False)
    made = llama.llama_like(
        hf,
        model_type="phimoe",
        qkv_bias=bias,
        out_bias=bias,
        windows=_windows(hf),
        positions=_phimoe_positions(hf),
        norm=NormConfig(kind="layer", eps=hf.get("rms_norm_eps", float, 1e-5)),
    )
    if isinstance(made.rotaries[0].scaling, LongRopeScaling):
        # For longer texts transformers keeps the short factors, with which nobody trained it.
        original = made.rotaries[0].scaling.original_context
        made = llama.altered(made, context_length=min(made.context_length, original))
    mixture = read_mixture(
        hf,
        size="intermediate_size",
        score="sparsemixer",
        jitter=hf.get("router_jitter_noise", float, 0.01),
        normalised=False,
    )
    return with_experts(replace(made, head_bias=hf.get("lm_head_bias", bool, False)), mixture)


def _phimoe_positions(hf: ConfigReader) -> RotaryPositions:
    """With stretched wavelengths, cosines and sines have a factor of their own."""
    positions = read_rotary(
        hf,
        head_dim=hf.size("head_dim", hf.size("hidden_size") // hf.size("num_attention_heads")),
        context_length=hf.size("max_position_embeddings"),
        theta=1_000_000.0,
    )
    rope = hf.nested("rope_scaling") or hf.nested("rope_parameters")
    if rope is None or not isinstance(positions.scaling, LongRopeScaling):
        return positions
    rope.skip("long_mscale")
    factor = rope.get("short_mscale", float)
    return replace(positions, scaling=replace(positions.scaling, attention_factor=factor))


def _sparse_layers(hf: ConfigReader, made: DecoderConfig) -> set[int]:
    """Layers without experts, of Qwen."""
    step, named = hf.size("decoder_sparse_step", 1), hf.get("mlp_only_layers", list, [])
    return {i for i in range(len(made.blocks)) if i in named or (i + 1) % step}


def _qwen2_moe(hf: ConfigReader) -> DecoderConfig:
    layers = hf.size("num_hidden_layers", most=MAX_LAYERS)
    used, first = hf.get("use_sliding_window", bool, False), hf.get("max_window_layers", int, 28)
    # transformers writes 0 for none.
    window = hf.get("sliding_window", int, 0 if "sliding_window" in hf else 4096)
    kinds = [SLIDING if used and i < first and not i % 2 else FULL for i in range(layers)]
    made = llama.llama_like(
        hf,
        model_type="qwen2_moe",
        qkv_bias=hf.get("qkv_bias", bool, True),
        windows=windows_of(read_layer_kinds(hf, kinds), window if used else None),
    )
    mixture = read_mixture(
        hf,
        normalised=hf.get("norm_topk_prob", bool, False),
        shared_size=hf.size("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    return with_experts(made, mixture, dense=_sparse_layers(hf, made))


def _qwen3_moe(hf: ConfigReader) -> DecoderConfig:
    hf.skip("max_window_layers")
    used, bias = hf.get("use_sliding_window", bool, False), hf.get("attention_bias", bool, False)
    windows = _windows(hf)
    made = llama.llama_like(
        hf,
        model_type="qwen3_moe",
        qkv_bias=bias,
        out_bias=bias,
        windows=windows if used else None,
    )
    made = llama.altered(made, attention={"query_key_norm": made.final_norm})
    mixture = read_mixture(hf, normalised=hf.get("norm_topk_prob", bool, False))
    return with_experts(made, mixture, dense=_sparse_layers(hf, made))


def _normed_over_all(hf: ConfigReader, **fields: Any) -> DecoderConfig:
    """Queries and keys are normed over all heads at once."""
    bias = hf.get("attention_bias", bool, False)
    made = llama.llama_like(hf, qkv_bias=bias, out_bias=bias, **fields)
    attention = {"query_key_norm": made.final_norm, "norm_over": "all"}
    return llama.altered(made, attention=attention)


def _olmoe(hf: ConfigReader) -> DecoderConfig:
    if hf.get("clip_qkv", float, None) is not None:
        raise ConfigError(
            f"{hf.name}: expected no clip_qkv beside norms of queries and keys, got one. "
            "This checkpoint cannot be loaded faithfully."
        )
    made = _normed_over_all(hf, model_type="olmoe", eps=1e-5)
    normalised = hf.get("norm_topk_prob", bool, False)
    return with_experts(made, read_mixture(hf, size="intermediate_size", normalised=normalised))


def _flex_olmo(hf: ConfigReader) -> DecoderConfig:
    made = _normed_over_all(hf, model_type="flex_olmo", theta=500_000.0)
    made = llama.altered(made, block={"placement": "inner_post"})
    normalised = hf.get("norm_topk_prob", bool, False)
    return with_experts(made, read_mixture(hf, size="intermediate_size", normalised=normalised))


def _granitemoe(hf: ConfigReader) -> DecoderConfig:
    made = replace(granite.GRANITE.config(hf), model_type=hf.get("model_type", str))
    return _granite_experts(hf, made)


def _granite_experts(hf: ConfigReader, made: DecoderConfig) -> DecoderConfig:
    shared = hf.get("shared_intermediate_size", int, 0)
    mixture = read_mixture(hf, size="intermediate_size", shared_size=shared or None)
    return with_experts(made, mixture)


def _granitemoe_swa(hf: ConfigReader) -> DecoderConfig:
    made = replace(granite.GRANITE_SWA.config(hf), model_type="granitemoe_swa")
    return _granite_experts(hf, made)


def _gpt_oss(hf: ConfigReader) -> DecoderConfig:
    # Names of the first release for what other keys say too.
    hf.skip("initial_context_length", "experts_per_token")
    layers = hf.size("num_hidden_layers", most=MAX_LAYERS)
    kinds = read_layer_kinds(hf, [FULL if i % 2 else SLIDING for i in range(layers)])
    window = hf.size("sliding_window", None) if "sliding_window" in hf else 128
    bias = hf.get("attention_bias", bool, True)
    if not any(hf.nested(key) for key in ("rope_scaling", "rope_parameters")):
        raise ConfigError(
            f"{hf.name}: expected rope_parameters or rope_scaling, got neither. "
            "Copy it from the model's published config."
        )
    made = llama.llama_like(
        hf,
        model_type="gpt_oss",
        qkv_bias=bias,
        out_bias=bias,
        windows=windows_of(kinds, window),
        theta=150_000.0,
        head_dim=64,
        eps=1e-5,
    )
    mixture = read_mixture(
        hf,
        size="intermediate_size",
        router_bias=True,
        expert_bias=True,
        alpha=hf.get("swiglu_alpha", float, 1.702),
        beta=1.0,
        limit=hf.get("swiglu_limit", float, 7.0),
    )
    return with_experts(llama.altered(made, attention={"sinks": True}), mixture)


MOST_FLOOR = 1e-6
"""Floor of the sum of a token's routing weights that no sum comes near."""


def _ernie4_5_moe(hf: ConfigReader) -> DecoderConfig:
    hf.refuse("use_bias")
    if (floor := hf.get("moe_norm_min", float, 1e-12)) > MOST_FLOOR:
        raise ConfigError(
            f"{hf.name}: moe_norm_min must be at most {MOST_FLOOR:g} to change nothing (got "
            f"{floor:g}). This checkpoint cannot be loaded faithfully."
        )
    made = llama.llama_like(
        hf,
        model_type="ernie4_5_moe",
        positions=read_rotary(
            hf,
            head_dim=hf.size("head_dim", hf.size("hidden_size") // hf.size("num_attention_heads")),
            context_length=hf.size("max_position_embeddings"),
            theta=500_000.0,
            interleaved=True,
        ),
        eps=1e-5,
        tied=True,
    )
    layers = len(made.blocks)
    first, last = hf.get("moe_layer_start_index", int, 1), hf.get("moe_layer_end_index", int, -1)
    step = hf.size("moe_layer_interval", 1)
    reached = range(layers) if last == -1 else range(min(last + 1, layers))
    sparse = {i for i in reached if i >= first and (i + 1) % step == 0}
    shared = hf.get("moe_num_shared_experts", int, 2) * hf.size("moe_intermediate_size")
    mixture = read_mixture(
        hf,
        count="moe_num_experts",
        per_token="moe_k",
        selection_bias=True,
        shared_size=shared or None,
    )
    return with_experts(made, mixture, dense=set(range(layers)) - sparse)


def _hunyuan_moe(hf: ConfigReader) -> DecoderConfig:
    made = replace(llama_values.HUNYUAN_V1_DENSE.config(hf), model_type="hunyuan_v1_moe")
    shared = made.blocks[0].dense.intermediate_size
    mixture = read_mixture(hf, size="intermediate_size", per_token="moe_topk", shared_size=shared)
    return with_experts(made, mixture)


def _without_mlp(table: Table) -> Table:
    return {name: target for name, target in table.items() if ".mlp." not in name}


_LLAMA = _without_mlp(llama.WEIGHTS)

QWEN3_MOE_WEIGHTS: Table = {
    **llama.WEIGHTS,
    **QUERY_KEY_NORMS,
    **experts.router("mlp.gate.weight"),
    **experts.apart("mlp.experts"),
}

_MIXTRAL: Table = {
    **_LLAMA,
    **experts.router("block_sparse_moe.gate.weight"),
    **experts.apart("block_sparse_moe.experts", gate="w1", up="w3", down="w2"),
}

_GRANITEMOE: Table = {
    **_LLAMA,
    **experts.router("block_sparse_moe.router.layer.weight"),
    "model.layers.{}.block_sparse_moe.input_linear.weight": Target(
        "blocks.{}.feed_forward.experts.gate_up", halves=True
    ),
    "model.layers.{}.block_sparse_moe.output_linear.weight": Target(
        "blocks.{}.feed_forward.experts.down"
    ),
}

_SHARED_MLP: Table = {
    "model.layers.{}.shared_mlp.input_linear.weight": tuple(
        Target(
            f"blocks.{{}}.feed_forward.shared.{ours}.weight",
            rows=Rows(1, 2, -1, ((place, place + 1),)),
        )
        for place, ours in enumerate(("gate", "up"))
    ),
    "model.layers.{}.shared_mlp.output_linear.weight": Target(
        "blocks.{}.feed_forward.shared.down.weight"
    ),
}

GRANITEMOESHARED_WEIGHTS: Table = {**_GRANITEMOE, **_SHARED_MLP}

_GPT_OSS: Table = {
    **_LLAMA,
    "model.layers.{}.self_attn.sinks": Target("blocks.{}.attention.sinks"),
    "model.layers.{}.mlp.router.weight": Target("blocks.{}.feed_forward.router.weight"),
    "model.layers.{}.mlp.router.bias": Target("blocks.{}.feed_forward.router.bias"),
    **{
        f"model.layers.{{}}.mlp.experts.{theirs}": Target(
            f"blocks.{{}}.feed_forward.experts.{ours}", transposed=not ours.endswith("bias")
        )
        for theirs, ours in (
            ("gate_up_proj", "gate_up"),
            ("down_proj", "down"),
            ("gate_up_proj_bias", "gate_up_bias"),
            ("down_proj_bias", "down_bias"),
        )
    },
}

MIXTRAL = MixtureFamily(config=_mixtral, WEIGHTS=_MIXTRAL)
PHIMOE = MixtureFamily(
    config=_phimoe,
    WEIGHTS={
        **_MIXTRAL,
        "model.layers.{}.input_layernorm.bias": Target("blocks.{}.attention_norm.bias"),
        "model.layers.{}.post_attention_layernorm.bias": Target("blocks.{}.feed_forward_norm.bias"),
        "model.norm.bias": Target("final_norm.bias"),
        "lm_head.bias": Target("head_bias"),
    },
)
QWEN2_MOE = MixtureFamily(
    config=_qwen2_moe,
    WEIGHTS={
        **llama.WEIGHTS,
        **experts.router("mlp.gate.weight"),
        **experts.apart("mlp.experts"),
        **experts.shared("mlp.shared_expert"),
        "model.layers.{}.mlp.shared_expert_gate.weight": Target(
            "blocks.{}.feed_forward.shared_gate.weight"
        ),
    },
)
QWEN3_MOE = MixtureFamily(config=_qwen3_moe, WEIGHTS=QWEN3_MOE_WEIGHTS)
OLMOE = MixtureFamily(config=_olmoe, WEIGHTS=QWEN3_MOE_WEIGHTS)
FLEX_OLMO = MixtureFamily(
    config=_flex_olmo,
    WEIGHTS={
        **_without_mlp(olmo.OLMO2.WEIGHTS),
        **experts.router("mlp.gate.weight"),
        **experts.apart("mlp.experts"),
    },
)
GRANITEMOE = MixtureFamily(config=_granitemoe, WEIGHTS=_GRANITEMOE)
GRANITEMOESHARED = MixtureFamily(config=_granitemoe, WEIGHTS=GRANITEMOESHARED_WEIGHTS)
GRANITEMOE_SWA = MixtureFamily(
    config=_granitemoe_swa,
    WEIGHTS={
        **_LLAMA,
        **_SHARED_MLP,
        "model.layers.{}.self_attn.sinks": Target("blocks.{}.attention.sinks"),
        **experts.router("block_sparse_moe.router.weight"),
        **experts.together("block_sparse_moe.experts"),
    },
)
GPT_OSS = MixtureFamily(config=_gpt_oss, WEIGHTS=_GPT_OSS)
ERNIE4_5_MOE = MixtureFamily(
    config=_ernie4_5_moe,
    WEIGHTS={
        **llama.WEIGHTS,
        **experts.router("mlp.gate.weight"),
        **experts.apart("mlp.experts"),
        **experts.shared("mlp.shared_experts"),
        **experts.selection_bias("mlp.moe_statics.e_score_correction_bias", leading=True),
        # Layers that predict further tokens, to draft with.
        "model.mtp_*": None,
    },
)
HUNYUAN_V1_MOE = MixtureFamily(
    config=_hunyuan_moe,
    WEIGHTS={
        **_without_mlp(llama_values.HUNYUAN_V1_DENSE.WEIGHTS),
        **experts.router("mlp.gate.wg.weight"),
        **experts.apart("mlp.experts"),
        **experts.shared("mlp.shared_mlp"),
    },
)
