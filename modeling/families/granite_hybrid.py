"""Granite 4 (IBM 2025): Mamba 2 in most layers and attention in some, Granite's factors on all.

With experts, each layer has one more for all tokens; without, that one is the mlp.
"""

from dataclasses import replace

from ortolan.modeling.config import (
    DecoderConfig,
    MixtureConfig,
    NoPositions,
    StateSpaceConfig,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import granite, llama
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.experts import read_mixture, with_experts
from ortolan.modeling.families.layer_kinds import (
    FULL,
    LINEAR,
    either,
    read_layer_kinds,
    with_mixers,
)
from ortolan.modeling.families.mamba import head_state_space_weights, read_steps
from ortolan.modeling.families.mixtures import GRANITEMOESHARED_WEIGHTS
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Rows, Table, Target

BASE_MODEL_PREFIX = llama.BASE_MODEL_PREFIX

_LAYER = "model.layers.{}."

_MIXERS: Table = {
    f"{_LAYER}input_layernorm.weight": either(
        "blocks.{}.attention_norm.weight", "blocks.{}.state_space_norm.weight"
    ),
    **head_state_space_weights(f"{_LAYER}mamba"),
}

_DENSE: Table = {
    f"{_LAYER}shared_mlp.input_linear.weight": tuple(
        Target(
            f"blocks.{{}}.feed_forward.{ours}.weight", rows=Rows(1, 2, -1, ((place, place + 1),))
        )
        for place, ours in enumerate(("gate", "up"))
    ),
    f"{_LAYER}shared_mlp.output_linear.weight": Target("blocks.{}.feed_forward.down.weight"),
}


def WEIGHTS(config: DecoderConfig) -> Table:  # noqa: N802 - in the place of a constant
    """The table, of a model with experts or without."""
    if isinstance(config.blocks[0].feed_forward, MixtureConfig):
        return {**GRANITEMOESHARED_WEIGHTS, **_MIXERS}
    without = {name: target for name, target in llama.WEIGHTS.items() if ".mlp." not in name}
    return {**without, **_DENSE, **_MIXERS}


def config(hf: ConfigReader) -> DecoderConfig:
    """A `GraniteMoeHybridConfig` of Hugging Face as a `DecoderConfig`."""
    # Of the first values of weights.
    hf.skip("init_method")
    if hf.get("normalization_function", str, "rmsnorm") != "rmsnorm":
        raise ConfigError(
            f"{hf.name}: expected normalization_function to be rmsnorm, got another. "
            "This checkpoint cannot be loaded faithfully."
        )
    made = replace(granite.GRANITE.config(hf), model_type="granitemoehybrid")
    if hf.get("position_embedding_type", str, "nope") != "rope":
        made = replace(made, positions=NoPositions())
    layers = hf.size("num_hidden_layers", most=MAX_LAYERS)
    kinds = read_layer_kinds(hf, [LINEAR] * layers, (FULL, LINEAR))
    mixed = with_mixers(made, kinds, {LINEAR: _state_space(hf, made)})
    shared = hf.size("shared_intermediate_size", 1024)
    if hf.get("num_local_experts", int, 8):
        mixture = read_mixture(
            hf, count="num_local_experts", size="intermediate_size", shared_size=shared
        )
        return with_experts(mixed, mixture)
    hf.skip("num_experts_per_tok", "output_router_logits", "router_aux_loss_coef")
    mlp = replace(made.blocks[0].dense, intermediate_size=shared)
    return replace(mixed, blocks=tuple(replace(block, feed_forward=mlp) for block in mixed.blocks))


def _state_space(hf: ConfigReader, made: DecoderConfig) -> StateSpaceConfig:
    hf.skip("mamba_chunk_size", "time_step_min", "time_step_max", "time_step_floor")
    channels = hf.size("mamba_expand", 2) * made.hidden_size
    heads = hf.size("mamba_n_heads", 128)
    width = None if hf.is_text("mamba_d_head") else hf.size("mamba_d_head", None)
    mixer = StateSpaceConfig(
        num_heads=heads,
        head_dim=max(channels // heads, 1) if width is None else width,
        state_dim=hf.size("mamba_d_state", 256),
        taps=hf.size("mamba_d_conv", 4),
        groups=hf.size("mamba_n_groups", 1),
        conv_bias=hf.get("mamba_conv_bias", bool, True),
        bias=hf.get("mamba_proj_bias", bool, False),
        norm=made.blocks[0].norm,
        steps=read_steps(hf),
        activation=read_activation(hf.get("hidden_act", str, "silu")),
    )
    if mixer.channels != channels:
        raise ConfigError(
            f"{hf.name}: expected mamba_n_heads times mamba_d_head to be the {channels} channels "
            f"of mamba_expand, got {mixer.channels}. Correct one of them."
        )
    return mixer
