"""Mamba (Gu and Dao 2023), Falcon Mamba (Zuo et al. 2024) and Mamba 2 (Dao and Gu 2024).

Every layer is a state space and no mlp. Falcon Mamba norms steps, keys and queries, without
weights. A memory of fixed size has no end: the context is as long as a config says, or `CONTEXT`.
"""

import math
from typing import Any

from ortolan.modeling.config import (
    BlockConfig,
    DecoderConfig,
    NoPositions,
    NormConfig,
    StateSpaceConfig,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.gpt_like import gpt_like, named
from ortolan.modeling.families.llama import LlamaFamily
from ortolan.modeling.families.reader import MAX_LAYERS, MAX_SIZE, ConfigReader
from ortolan.modeling.weights import Table, Target

CONTEXT = 1 << 20
"""Tokens that fit where the config does not say."""

OURS = "blocks.{}.state_space"


def state_space_weights(theirs: str) -> Table:
    """The rows of what both kinds have, below a published prefix."""
    return {
        **named(f"{theirs}.", f"{OURS}.", {"in_proj": "project", "out_proj": "out"}),
        **named(f"{theirs}.", f"{OURS}.", {"conv1d": "conv"}),
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
    **named(f"{_LAYER}mixer.", f"{OURS}.", {"dt_proj": "step_size"}),
}

_MAMBA2: Table = {**_STREAM, **head_state_space_weights(f"{_LAYER}mixer")}


def _decoder(
    hf: ConfigReader, model_type: str, mixer: StateSpaceConfig, **fields: Any
) -> DecoderConfig:
    """Layers of one mixer and no mlp."""
    # First values of weights, kernels of training, and what changes 16-bit computation alone.
    hf.skip("time_step_floor", "time_step_init_scheme", "time_step_max", "time_step_min")
    hf.skip("time_step_scale", "rescale_prenorm_residual", "residual_in_fp32", "chunk_size")
    hf.skip("use_mambapy", "use_falcon_mambapy", "use_associative_scan", "emb_initializer_range")
    # Of the first authors' own code, which transformers does not read.
    hf.skip("d_inner", "d_model", "fused_add_norm", "n_layer", "pad_vocab_size_multiple")
    hf.skip("rms_norm", "ssm_cfg", "norm_before_gate")
    norm = NormConfig(kind="rms", eps=hf.get("layer_norm_epsilon", float, 1e-5))
    block = BlockConfig(mixer=mixer, feed_forward=None, norm=norm)
    return gpt_like(
        hf,
        model_type=model_type,
        width=hf.size("hidden_size"),
        context_length=hf.size("max_position_embeddings", CONTEXT),
        positions=NoPositions(),
        blocks=(block,) * hf.size("num_hidden_layers", most=MAX_LAYERS),
        **fields,
    )


def _channels(hf: ConfigReader) -> int:
    """Channels that the stream is expanded to."""
    width, expand = hf.size("hidden_size"), hf.get("expand", float, 2.0)
    channels = int(min(max(expand, 0), MAX_SIZE) * width)
    if not 1 <= channels <= MAX_SIZE:
        raise ConfigError(
            f"{hf.name}: expected expand to give 1 to {MAX_SIZE} channels, got {channels}. "
            "Correct it."
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
    return _decoder(hf, "mamba", _first(hf))


def _falcon_mamba(hf: ConfigReader) -> DecoderConfig:
    eps = hf.get("mixer_rms_eps", float, 1e-6)
    norm = NormConfig(kind="rms", eps=eps, scale=False)
    return _decoder(hf, "falcon_mamba", _first(hf, inner_norm=norm))


def _mamba2(hf: ConfigReader) -> DecoderConfig:
    # Of the first Mamba; the number of channels is that of `expand` here.
    hf.skip("time_step_rank", "intermediate_size")
    mixer = StateSpaceConfig(
        num_heads=hf.size("num_heads", 128),
        head_dim=hf.size("head_dim", 64),
        state_dim=hf.size("state_size", 128),
        taps=hf.size("conv_kernel", 4),
        groups=hf.size("n_groups", 8),
        conv_bias=hf.get("use_conv_bias", bool, True),
        bias=hf.get("use_bias", bool, False),
        norm=NormConfig(kind="rms", eps=hf.get("layer_norm_epsilon", float, 1e-5)),
        steps=read_steps(hf),
        activation=read_activation(hf.get("hidden_act", str, "silu")),
    )
    if mixer.channels != _channels(hf):
        raise ConfigError(
            f"{hf.name}: expected num_heads times head_dim to be the {_channels(hf)} channels of "
            f"expand, got {mixer.channels}. Correct one of them."
        )
    return _decoder(hf, "mamba2", mixer, tied=False)


def read_steps(hf: ConfigReader) -> tuple[float, float] | None:
    """`time_step_limit`: the bounds of the steps; None where these bind none.

    Raises:
        ConfigError: no two numbers, the first no larger than the second.
    """
    given = hf.get("time_step_limit", list, [0.0, math.inf])
    # transformers writes infinity as an object.
    plain = [each.get("__float__") if isinstance(each, dict) else each for each in given]
    numbers = [math.inf if each == "Infinity" else each for each in plain]
    bounds = [float(n) for n in numbers if isinstance(n, int | float) and type(n) is not bool]
    if len(given) != 2 or len(bounds) != 2:
        raise ConfigError(
            f"{hf.name}: expected time_step_limit to be two numbers, got {given!r:.80}. Correct it."
        )
    low, high = bounds
    if not 0 <= low <= high:
        raise ConfigError(
            f"{hf.name}: expected time_step_limit to rise from at least 0, got {low} and {high}. "
            "Correct it."
        )
    return None if (low, high) == (0.0, math.inf) else (low, high)


MAMBA = LlamaFamily(config=_mamba, WEIGHTS=_MAMBA, BASE_MODEL_PREFIX="backbone")
FALCON_MAMBA = LlamaFamily(config=_falcon_mamba, WEIGHTS=_MAMBA, BASE_MODEL_PREFIX="backbone")
MAMBA2 = LlamaFamily(config=_mamba2, WEIGHTS=_MAMBA2, BASE_MODEL_PREFIX="backbone")
