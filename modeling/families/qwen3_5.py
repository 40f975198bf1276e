"""Qwen3.5 (Qwen Team 2026), its language model: gated delta rules, and gated attention.

Every fourth layer has attention, whose heads are gated channel by channel; a query and its gate
are rows of one matrix, head by head. Gains are stored less one. Positions of texts are plain ones,
whatever the config says of images.
"""

from ortolan.modeling.config import DecoderConfig, GatedDeltaConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import llama
from ortolan.modeling.families.layer_kinds import (
    FULL,
    LINEAR,
    either,
    read_layer_kinds,
    with_mixers,
)
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.rope import read_rotary
from ortolan.modeling.weights import Rows, Table, Target

BASE_MODEL_PREFIX = llama.BASE_MODEL_PREFIX

_LAYER = "model.layers.{}."
_DELTA = "blocks.{}.gated_delta."


def _gain(ours: str) -> Target:
    return Target(f"{ours}.weight", offset=1.0)


_WEIGHTS: Table = {
    **llama.WEIGHTS,
    f"{_LAYER}input_layernorm.weight": either(
        "blocks.{}.attention_norm.weight", "blocks.{}.gated_delta_norm.weight", offset=1.0
    ),
    f"{_LAYER}post_attention_layernorm.weight": _gain("blocks.{}.feed_forward_norm"),
    f"{_LAYER}self_attn.q_norm.weight": _gain("blocks.{}.attention.query_norm"),
    f"{_LAYER}self_attn.k_norm.weight": _gain("blocks.{}.attention.key_norm"),
    **{
        f"{_LAYER}linear_attn.in_proj_{part}.weight": Target(f"{_DELTA}project.weight")
        for part in ("qkv", "z", "b", "a")
    },
    f"{_LAYER}linear_attn.conv1d.weight": Target(f"{_DELTA}conv.weight"),
    f"{_LAYER}linear_attn.dt_bias": Target(f"{_DELTA}step_bias"),
    f"{_LAYER}linear_attn.A_log": Target(f"{_DELTA}decay"),
    f"{_LAYER}linear_attn.norm.weight": Target(f"{_DELTA}norm.weight"),
    f"{_LAYER}linear_attn.out_proj.weight": Target(f"{_DELTA}out.weight"),
    "model.norm.weight": _gain("final_norm"),
    # It drafts tokens, which the model does without.
    "mtp.*": None,
}


def WEIGHTS(config: DecoderConfig) -> Table:  # noqa: N802 - in the place of a constant
    """The table, with the rows of a query and its gate."""
    width = config.attentions[0].head_dim if config.attentions else 1
    parts = {"qkv": Rows(-1, 2, width, ((0, 1),)), "gate": Rows(-1, 2, width, ((1, 2),))}
    return {
        **_WEIGHTS,
        **{
            f"{_LAYER}self_attn.q_proj.{kind}": tuple(
                Target(f"blocks.{{}}.attention.{ours}.{kind}", rows=rows)
                for ours, rows in parts.items()
            )
            for kind in ("weight", "bias")
        },
    }


def config(hf: ConfigReader) -> DecoderConfig:
    """A `Qwen3_5TextConfig` of Hugging Face as a `DecoderConfig`."""
    hf.skip("mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")
    hf.require("attn_output_gate")
    if hf.get("mlp_only_layers", list, []):
        raise ConfigError(f"{hf.name}: expected mlp_only_layers to be empty, got some. Correct it.")
    rope = hf.nested("rope_scaling") or hf.nested("rope_parameters") or ConfigReader({})
    rope.skip("mrope_section", "mrope_interleaved")
    bias = hf.get("attention_bias", bool, False)
    head_dim = hf.size("head_dim", 256)
    positions = read_rotary(
        hf,
        head_dim=head_dim,
        context_length=hf.size("max_position_embeddings"),
        fraction=0.25,
    )
    made = llama.llama_like(
        hf,
        model_type="qwen3_5_text",
        qkv_bias=bias,
        out_bias=bias,
        head_dim=head_dim,
        positions=positions,
    )
    made = llama.altered(made, attention={"query_key_norm": made.final_norm, "gate": True})
    return with_mixers(made, _kinds(hf), {LINEAR: _delta(hf, made)})


def _kinds(hf: ConfigReader) -> tuple[str, ...]:
    layers = hf.size("num_hidden_layers", most=MAX_LAYERS)
    period = hf.size("full_attention_interval", 4)
    default = [LINEAR if (i + 1) % period else FULL for i in range(layers)]
    return read_layer_kinds(hf, default, (FULL, LINEAR))


def _delta(hf: ConfigReader, made: DecoderConfig) -> GatedDeltaConfig:
    if made.blocks[0].dense.activation != "silu":
        raise ConfigError(
            f"{hf.name}: expected hidden_act to be silu, got {made.blocks[0].dense.activation}. "
            "This checkpoint cannot be loaded faithfully."
        )
    return GatedDeltaConfig(
        num_heads=hf.size("linear_num_value_heads", 32),
        num_key_heads=hf.size("linear_num_key_heads", 16),
        key_dim=hf.size("linear_key_head_dim", 128),
        value_dim=hf.size("linear_value_head_dim", 128),
        taps=hf.size("linear_conv_kernel_dim", 4),
        norm=made.blocks[0].norm,
    )
