"""Granite 4 (IBM 2025): Mamba 2 in most layers, attention in some, Granite's factors on all.

With experts, every layer has one more expert for all tokens; without, that one is the MLP.
"""

from dataclasses import replace

from ortolan.modeling.config import DecoderConfig, MixtureConfig, NoPositions, StateSpaceConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import granite, llama
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.experts import read_mixture, with_experts
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.layer_kinds import (
    FULL,
    LINEAR,
    layers_of,
    read_layer_kinds,
    with_mixers,
)
from ortolan.modeling.families.mamba import head_state_space_weights, read_steps
from ortolan.modeling.families.mixtures import GRANITEMOESHARED_WEIGHTS
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.tables import either, gate_up, without
from ortolan.modeling.weights import Table, Target

_LAYER = "model.layers.{}."

_MIXERS: Table = {
    f"{_LAYER}input_layernorm.weight": either(
        "blocks.{}.attention_norm.weight", "blocks.{}.state_space_norm.weight"
    ),
    **head_state_space_weights(f"{_LAYER}mamba"),
}

_DENSE: Table = {
    **without(llama.WEIGHTS, ".mlp."),
    f"{_LAYER}shared_mlp.input_linear.weight": gate_up("blocks.{}.feed_forward"),
    f"{_LAYER}shared_mlp.output_linear.weight": Target("blocks.{}.feed_forward.down.weight"),
    **_MIXERS,
}


def _weights(config: DecoderConfig) -> Table:
    if isinstance(config.blocks[0].feed_forward, MixtureConfig):
        return {**GRANITEMOESHARED_WEIGHTS, **_MIXERS}
    return _DENSE


def _config(hf: ConfigReader) -> DecoderConfig:
    # A key of the initial weights.
    hf.skip("init_method")
    if (norm := hf.get("normalization_function", str, "rmsnorm")) != "rmsnorm":
        raise ConfigError(
            f"{hf.name}: normalization_function must be rmsnorm (got {norm!r:.40}). "
            "This checkpoint cannot be loaded faithfully."
        )
    config = granite.granite(hf)
    if hf.get("position_embedding_type", str, "nope") != "rope":
        config = replace(config, positions=NoPositions())
    kinds = read_layer_kinds(hf, [LINEAR] * layers_of(hf), (FULL, LINEAR))
    mixed = with_mixers(config, kinds, {LINEAR: _state_space(hf, config)})
    shared = hf.size("shared_intermediate_size", 1024)
    if hf.get("num_local_experts", int, 8):
        mixture = read_mixture(
            hf, count="num_local_experts", size="intermediate_size", shared_size=shared
        )
        return with_experts(mixed, mixture)
    hf.skip("num_experts_per_tok", "output_router_logits", "router_aux_loss_coef")
    mlp = replace(config.blocks[0].dense, intermediate_size=shared)
    return replace(mixed, blocks=tuple(replace(block, feed_forward=mlp) for block in mixed.blocks))


def _state_space(hf: ConfigReader, config: DecoderConfig) -> StateSpaceConfig:
    hf.skip("mamba_chunk_size", "time_step_min", "time_step_max", "time_step_floor")
    channels = hf.size("mamba_expand", 2) * config.hidden_size
    heads = hf.size("mamba_n_heads", 128)
    head_dim = None if hf.is_text("mamba_d_head") else hf.size("mamba_d_head", None)
    mixer = StateSpaceConfig(
        num_heads=heads,
        head_dim=max(channels // heads, 1) if head_dim is None else head_dim,
        state_dim=hf.size("mamba_d_state", 256),
        taps=hf.size("mamba_d_conv", 4),
        groups=hf.size("mamba_n_groups", 1),
        conv_bias=hf.get("mamba_conv_bias", bool, True),
        bias=hf.get("mamba_proj_bias", bool, False),
        norm=config.blocks[0].norm,
        steps=read_steps(hf),
        activation=read_activation(hf.get("hidden_act", str, "silu")),
    )
    if mixer.channels != channels:
        raise ConfigError(
            f"{hf.name}: mamba_n_heads times mamba_d_head must be the {channels} channels of "
            f"mamba_expand (got {mixer.channels}). Correct one of them."
        )
    return mixer


FAMILIES: dict[str, Family[DecoderConfig]] = {
    "granitemoehybrid": Family(config=_config, weights=_weights)
}
