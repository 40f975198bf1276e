"""Mamba (Gu and Dao 2023), Falcon Mamba (Zuo et al. 2024) and Mamba 2 (Dao and Gu 2024).

Every layer is a state space without an MLP. Falcon Mamba normalises steps, keys and queries,
without weights. A state of fixed size has no end: the context is as long as the config says, or
`CONTEXT`.
"""

import math

from ortolan.modeling.config import (
    BlockConfig,
    DecoderConfig,
    NoPositions,
    NormConfig,
    StateSpaceConfig,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.decoder import decoder_of
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.layer_kinds import layers_of
from ortolan.modeling.families.norms import rms
from ortolan.modeling.families.reader import MAX_SIZE, ConfigReader
from ortolan.modeling.families.tables import linear
from ortolan.modeling.weights import Table, Target

CONTEXT = 1 << 20
"""Context length if the config does not say."""

OURS = "blocks.{}.state_space"


def state_space_weights(theirs: str) -> Table:
    """The rows that both kinds have, below a published prefix."""
    modules = {"in_proj": "project", "out_proj": "out", "conv1d": "conv"}
    return {
        **linear(modules, f"{theirs}.", f"{OURS}."),
        f"{theirs}.A_log": Target(f"{OURS}.decay"),
        f"{theirs}.D": Target(f"{OURS}.skip"),
    }


def head_state_space_weights(theirs: str) -> Table:
    """The rows of Mamba 2, below a published prefix."""
    return {
        **state_space_weights(theirs),
        f"{theirs}.dt_bias": Target(f"{OURS}.step_bias"),
        f"{theirs}.norm.weight": Target(f"{OURS}.norm.weight"),
    }


_LAYER = "backbone.layers.{}."

_STREAM: Table = {
    "backbone.embeddings.weight": Target("embedding.weight"),
    f"{_LAYER}norm.weight": Target("blocks.{}.state_space_norm.weight"),
    "backbone.norm_f.weight": Target("final_norm.weight"),
    "lm_head.weight": Target("head.weight"),
}

_MAMBA: Table = {
    **_STREAM,
    **state_space_weights(f"{_LAYER}mixer"),
    f"{_LAYER}mixer.x_proj.weight": Target(f"{OURS}.select.weight"),
    **linear({"dt_proj": "step_size"}, f"{_LAYER}mixer.", f"{OURS}."),
}

_MAMBA2: Table = {**_STREAM, **head_state_space_weights(f"{_LAYER}mixer")}


def _decoder(hf: ConfigReader, mixer: StateSpaceConfig, *, tied: bool = True) -> DecoderConfig:
    """Layers of one mixer without an MLP."""
    # Initial weights, kernels of training, and what changes 16-bit computation only.
    hf.skip("time_step_floor", "time_step_init_scheme", "time_step_max", "time_step_min")
    hf.skip("time_step_scale", "rescale_prenorm_residual", "residual_in_fp32", "chunk_size")
    hf.skip("use_mambapy", "use_falcon_mambapy", "use_associative_scan", "emb_initializer_range")
    # Keys of the first authors' code, which transformers does not read.
    hf.skip("d_inner", "d_model", "fused_add_norm", "n_layer", "pad_vocab_size_multiple")
    hf.skip("rms_norm", "ssm_cfg", "norm_before_gate")
    norm = rms(hf.get("layer_norm_epsilon", float, 1e-5))
    return decoder_of(
        hf,
        width=hf.size("hidden_size"),
        context_length=hf.size("max_position_embeddings", CONTEXT),
        positions=NoPositions(),
        blocks=(BlockConfig(mixer=mixer, feed_forward=None, norm=norm),) * layers_of(hf),
        tied=tied,
    )


def _channels(hf: ConfigReader) -> int:
    """Channels that the stream is expanded to."""
    width, expand = hf.size("hidden_size"), hf.get("expand", float, 2.0)
    channels = int(min(max(expand, 0), MAX_SIZE) * width)
    if not 1 <= channels <= MAX_SIZE:
        raise ConfigError(
            f"{hf.name}: expand must give 1 to {MAX_SIZE} channels (got {channels}). Correct it."
        )
    return channels


def _first(hf: ConfigReader, *, inner_norm: NormConfig | None = None) -> StateSpaceConfig:
    width = hf.size("hidden_size")
    # "auto", or a number.
    ranks = None if hf.is_text("time_step_rank") else hf.size("time_step_rank", None)
    return StateSpaceConfig(
        num_heads=hf.size("intermediate_size", _channels(hf)),
        head_dim=1,
        state_dim=hf.size("state_size", 16),
        taps=hf.size("conv_kernel", 4),
        step_rank=-(-width // 16) if ranks is None else ranks,
        conv_bias=hf.get("use_conv_bias", bool, True),
        bias=hf.get("use_bias", bool, False),
        inner_norm=inner_norm,
        activation=read_activation(hf.get("hidden_act", str, "silu")),
    )


def _mamba(hf: ConfigReader) -> DecoderConfig:
    return _decoder(hf, _first(hf))


def _falcon_mamba(hf: ConfigReader) -> DecoderConfig:
    norm = rms(hf.get("mixer_rms_eps", float, 1e-6), scale=False)
    return _decoder(hf, _first(hf, inner_norm=norm))


def _mamba2(hf: ConfigReader) -> DecoderConfig:
    # Keys of the first Mamba; here `expand` says the number of channels.
    hf.skip("time_step_rank", "intermediate_size")
    mixer = StateSpaceConfig(
        num_heads=hf.size("num_heads", 128),
        head_dim=hf.size("head_dim", 64),
        state_dim=hf.size("state_size", 128),
        taps=hf.size("conv_kernel", 4),
        groups=hf.size("n_groups", 8),
        conv_bias=hf.get("use_conv_bias", bool, True),
        bias=hf.get("use_bias", bool, False),
        norm=rms(hf.get("layer_norm_epsilon", float, 1e-5)),
        steps=read_steps(hf),
        activation=read_activation(hf.get("hidden_act", str, "silu")),
    )
    if mixer.channels != _channels(hf):
        raise ConfigError(
            f"{hf.name}: num_heads times head_dim must be the {_channels(hf)} channels of expand "
            f"(got {mixer.channels}). Correct one of them."
        )
    return _decoder(hf, mixer, tied=False)


def read_steps(hf: ConfigReader) -> tuple[float, float] | None:
    """`time_step_limit`: the bounds of the steps; None if they bind none."""
    published = hf.get("time_step_limit", list, [0.0, math.inf])
    # transformers writes infinity as an object.
    plain = [bound.get("__float__") if isinstance(bound, dict) else bound for bound in published]
    numbers = [math.inf if bound == "Infinity" else bound for bound in plain]
    bounds = [float(n) for n in numbers if isinstance(n, int | float) and type(n) is not bool]
    if len(published) != 2 or len(bounds) != 2:
        raise ConfigError(
            f"{hf.name}: time_step_limit must be two numbers (got {published!r:.80}). Correct it."
        )
    low, high = bounds
    if not 0 <= low <= high:
        raise ConfigError(
            f"{hf.name}: time_step_limit must rise from at least 0 (got {low} and {high}). "
            "Correct it."
        )
    return None if (low, high) == (0.0, math.inf) else (low, high)


FAMILIES: dict[str, Family[DecoderConfig]] = {
    name: Family(config=config, weights=weights, base_model_prefix="backbone")
    for name, config, weights in (
        ("mamba", _mamba, _MAMBA),
        ("falcon_mamba", _falcon_mamba, _MAMBA),
        ("mamba2", _mamba2, _MAMBA2),
    )
}
