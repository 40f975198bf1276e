"""Decoders with mixtures of experts.

Mixtral (Jiang et al. 2024), Qwen 2 and 3 MoE (Yang et al. 2024, 2025), OLMoE (Muennighoff et al.
2024), FlexOlmo (Shi et al. 2025), Phi 3.5 MoE (Abdin et al. 2024), Granite MoE (IBM 2024),
gpt-oss (OpenAI 2025), ERNIE 4.5 (Baidu 2025), Hunyuan A13B (Tencent 2025).
"""

from dataclasses import replace

from ortolan.modeling.config import DecoderConfig, LongRopeScaling, RotaryPositions
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import experts, granite, llama, llama_kin, olmo
from ortolan.modeling.families.decoder import DecoderFormat
from ortolan.modeling.families.experts import (
    MIXTRAL_EXPERTS,
    QWEN3_MOE_WEIGHTS,
    read_mixture,
    with_experts,
)
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.layer_kinds import (
    FULL,
    SLIDING,
    layers_of,
    one_window,
    read_layer_kinds,
    read_window,
    windows_of,
)
from ortolan.modeling.families.norms import layer_norm, rms
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.rope import read_rotary
from ortolan.modeling.families.tables import gate_up, without
from ortolan.modeling.weights import Table, Target

_LAYER, _OURS = "model.layers.{}.", "blocks.{}.feed_forward."


def _mixtral(hf: ConfigReader) -> DecoderConfig:
    hf.skip("router_jitter_noise")
    config = DecoderFormat(windows=one_window, norm=rms(1e-5), theta=1_000_000.0).read(hf)
    return with_experts(config, read_mixture(hf, size="intermediate_size"))


def _phimoe(hf: ConfigReader) -> DecoderConfig:
    hf.skip("input_jitter_noise")
    config = DecoderFormat(
        bias="attention_bias",
        windows=one_window,
        norm=layer_norm(1e-5),
        positions=_phimoe_positions(hf),
        decoder={"head_bias": hf.get("lm_head_bias", bool, False)},
    ).read(hf)
    scaling = config.rotaries[0].scaling
    if isinstance(scaling, LongRopeScaling):
        # Beyond this, transformers keeps the short factors, which the model was not trained with.
        length = min(config.context_length, scaling.original_context)
        config = replace(config, context_length=length)
    mixture = read_mixture(
        hf,
        size="intermediate_size",
        score="sparsemixer",
        jitter=hf.get("router_jitter_noise", float, 0.01),
        normalised=False,
    )
    return with_experts(config, mixture)


def _phimoe_positions(hf: ConfigReader) -> RotaryPositions:
    """Where wavelengths are stretched, cosines and sines have a factor of their own."""
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


def _qwen_dense(hf: ConfigReader) -> set[int]:
    """Layers of Qwen without experts."""
    step, named = hf.size("decoder_sparse_step", 1), hf.get("mlp_only_layers", list, [])
    return {i for i in range(layers_of(hf)) if i in named or (i + 1) % step}


def _qwen2_moe(hf: ConfigReader) -> DecoderConfig:
    used, first = hf.get("use_sliding_window", bool, False), hf.get("max_window_layers", int, 28)
    # transformers writes 0 for none.
    window = hf.get("sliding_window", int, 0 if "sliding_window" in hf else 4096)
    layers = range(layers_of(hf))
    kinds = [SLIDING if used and i < first and not i % 2 else FULL for i in layers]
    config = DecoderFormat(
        qkv_bias=("qkv_bias", True),
        windows=windows_of(read_layer_kinds(hf, kinds), window if used else None),
    ).read(hf)
    mixture = read_mixture(
        hf,
        normalised=hf.get("norm_topk_prob", bool, False),
        shared_size=hf.size("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    return with_experts(config, mixture, dense=_qwen_dense(hf))


def _qwen3_moe(hf: ConfigReader) -> DecoderConfig:
    hf.skip("max_window_layers")
    windows = one_window(hf)
    config = DecoderFormat(
        bias="attention_bias",
        query_key_norm=True,
        windows=windows if hf.get("use_sliding_window", bool, False) else None,
    ).read(hf)
    mixture = read_mixture(hf, normalised=hf.get("norm_topk_prob", bool, False))
    return with_experts(config, mixture, dense=_qwen_dense(hf))


_OLMOE = DecoderFormat(
    bias="attention_bias", query_key_norm=True, attention={"norm_over": "all"}, norm=rms(1e-5)
)


def _olmoe(hf: ConfigReader) -> DecoderConfig:
    if hf.get("clip_qkv", float, None) is not None:
        raise ConfigError(
            f"{hf.name}: clip_qkv cannot go with norms of queries and keys. "
            "This checkpoint cannot be loaded faithfully."
        )
    return _olmo_experts(hf, _OLMOE)


def _flex_olmo(hf: ConfigReader) -> DecoderConfig:
    form = replace(_OLMOE, norm=rms(1e-6), placement="inner_post", theta=500_000.0)
    return _olmo_experts(hf, form)


def _olmo_experts(hf: ConfigReader, form: DecoderFormat) -> DecoderConfig:
    normalised = hf.get("norm_topk_prob", bool, False)
    mixture = read_mixture(hf, size="intermediate_size", normalised=normalised)
    return with_experts(form.read(hf), mixture)


def _granite_experts(hf: ConfigReader, config: DecoderConfig) -> DecoderConfig:
    shared = hf.get("shared_intermediate_size", int, 0)
    mixture = read_mixture(hf, size="intermediate_size", shared_size=shared or None)
    return with_experts(config, mixture)


def _granitemoe(hf: ConfigReader) -> DecoderConfig:
    return _granite_experts(hf, granite.granite(hf))


def _gpt_oss(hf: ConfigReader) -> DecoderConfig:
    # Names of the first release for what other keys say too.
    hf.skip("initial_context_length", "experts_per_token")
    kinds = read_layer_kinds(hf, [FULL if i % 2 else SLIDING for i in range(layers_of(hf))])
    # transformers would fall back to a scaling that is not read here.
    if not any(hf.nested(key) for key in ("rope_scaling", "rope_parameters")):
        raise ConfigError(
            f"{hf.name}: rope_parameters or rope_scaling is missing. "
            "Copy it from the model's published config."
        )
    config = DecoderFormat(
        bias=("attention_bias", True),
        head_dim=64,
        attention={"sinks": True},
        windows=windows_of(kinds, read_window(hf, 128)),
        norm=rms(1e-5),
        theta=150_000.0,
    ).read(hf)
    mixture = read_mixture(
        hf,
        size="intermediate_size",
        router_bias=True,
        expert_bias=True,
        alpha=hf.get("swiglu_alpha", float, 1.702),
        beta=1.0,
        limit=hf.get("swiglu_limit", float, 7.0),
    )
    return with_experts(config, mixture)


MOST_FLOOR = 1e-6
"""Floor of the sum of a token's routing weights that no sum comes near."""


def _ernie4_5_moe(hf: ConfigReader) -> DecoderConfig:
    hf.refuse("use_bias")
    if (floor := hf.get("moe_norm_min", float, 1e-12)) > MOST_FLOOR:
        raise ConfigError(
            f"{hf.name}: moe_norm_min must be at most {MOST_FLOOR:g} to change nothing (got "
            f"{floor:g}). This checkpoint cannot be loaded faithfully."
        )
    config = DecoderFormat(norm=rms(1e-5), theta=500_000.0, interleaved=True, tied=True).read(hf)
    layers = len(config.blocks)
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
    return with_experts(config, mixture, dense=set(range(layers)) - sparse)


def _hunyuan_moe(hf: ConfigReader) -> DecoderConfig:
    config = llama_kin.hunyuan(hf)
    shared = config.blocks[0].dense.intermediate_size
    mixture = read_mixture(hf, size="intermediate_size", per_token="moe_topk", shared_size=shared)
    return with_experts(config, mixture)


_LLAMA = without(llama.WEIGHTS, ".mlp.")

_PHIMOE: Table = {
    **_LLAMA,
    **MIXTRAL_EXPERTS,
    f"{_LAYER}input_layernorm.bias": Target("blocks.{}.attention_norm.bias"),
    f"{_LAYER}post_attention_layernorm.bias": Target("blocks.{}.feed_forward_norm.bias"),
    "model.norm.bias": Target("final_norm.bias"),
    "lm_head.bias": Target("head_bias"),
}

_QWEN2_MOE: Table = {
    **without(QWEN3_MOE_WEIGHTS, "q_norm", "k_norm"),
    **experts.shared("mlp.shared_expert"),
    f"{_LAYER}mlp.shared_expert_gate.weight": Target(f"{_OURS}shared_gate.weight"),
}

_FLEX_OLMO: Table = {
    **without(olmo.WEIGHTS_2, ".mlp."),
    **experts.router("mlp.gate.weight"),
    **experts.apart("mlp.experts"),
}

_GRANITEMOE: Table = {
    **_LLAMA,
    **experts.router("block_sparse_moe.router.layer.weight"),
    **experts.together(
        "block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"
    ),
}

_SHARED_MLP: Table = {
    f"{_LAYER}shared_mlp.input_linear.weight": gate_up(f"{_OURS}shared"),
    f"{_LAYER}shared_mlp.output_linear.weight": Target(f"{_OURS}shared.down.weight"),
}

GRANITEMOESHARED_WEIGHTS: Table = {**_GRANITEMOE, **_SHARED_MLP}

_GPT_OSS: Table = {
    **_LLAMA,
    f"{_LAYER}self_attn.sinks": Target("blocks.{}.attention.sinks"),
    **experts.router("mlp.router.weight"),
    f"{_LAYER}mlp.router.bias": Target(f"{_OURS}router.bias"),
    f"{_LAYER}mlp.experts.gate_up_proj": Target(f"{_OURS}experts.gate_up", transposed=True),
    f"{_LAYER}mlp.experts.down_proj": Target(f"{_OURS}experts.down", transposed=True),
    f"{_LAYER}mlp.experts.gate_up_proj_bias": Target(f"{_OURS}experts.gate_up_bias"),
    f"{_LAYER}mlp.experts.down_proj_bias": Target(f"{_OURS}experts.down_bias"),
}

_ERNIE4_5_MOE: Table = {
    **without(QWEN3_MOE_WEIGHTS, "q_norm", "k_norm"),
    **experts.shared("mlp.shared_experts"),
    **experts.selection_bias("mlp.moe_statics.e_score_correction_bias", leading=True),
    # Layers that predict further tokens, for drafts.
    "model.mtp_*": None,
}

_HUNYUAN_MOE: Table = {
    **without(llama_kin.HUNYUAN_WEIGHTS, ".mlp."),
    **experts.router("mlp.gate.wg.weight"),
    **experts.apart("mlp.experts"),
    **experts.shared("mlp.shared_mlp"),
}

FAMILIES: dict[str, Family[DecoderConfig]] = {
    "mixtral": Family(config=_mixtral, weights={**_LLAMA, **MIXTRAL_EXPERTS}),
    "phimoe": Family(config=_phimoe, weights=_PHIMOE),
    "qwen2_moe": Family(config=_qwen2_moe, weights=_QWEN2_MOE),
    "qwen3_moe": Family(config=_qwen3_moe, weights=QWEN3_MOE_WEIGHTS),
    "olmoe": Family(config=_olmoe, weights=QWEN3_MOE_WEIGHTS),
    "flex_olmo": Family(config=_flex_olmo, weights=_FLEX_OLMO),
    "granitemoe": Family(config=_granitemoe, weights=_GRANITEMOE),
    "granitemoeshared": Family(config=_granitemoe, weights=GRANITEMOESHARED_WEIGHTS),
    "gpt_oss": Family(config=_gpt_oss, weights=_GPT_OSS),
    "hunyuan_v1_moe": Family(config=_hunyuan_moe, weights=_HUNYUAN_MOE),
    "ernie4_5_moe": Family(config=_ernie4_5_moe, weights=_ERNIE4_5_MOE),
}
