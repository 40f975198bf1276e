"""The language model of Qwen 3.5 (Qwen Team 2026): gated delta rules, and gated attention.

Every fourth layer has attention, whose heads are gated channel by channel; a query and its gate
are rows of one matrix, head by head. Norms are published less one. Text has plain positions,
whatever the config says of images.
"""

from ortolan.modeling.config import DecoderConfig, GatedDeltaConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import llama
from ortolan.modeling.families.decoder import DecoderFormat
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.layer_kinds import (
    FULL,
    LINEAR,
    layers_of,
    read_layer_kinds,
    with_mixers,
)
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.tables import either, gain
from ortolan.modeling.weights import Rows, Table, Target

_LAYER, _DELTA = "model.layers.{}.", "blocks.{}.gated_delta."

_WEIGHTS: Table = {
    **llama.WEIGHTS,
    f"{_LAYER}input_layernorm.weight": either(
        "blocks.{}.attention_norm.weight", "blocks.{}.gated_delta_norm.weight", offset=1.0
    ),
    f"{_LAYER}post_attention_layernorm.weight": gain("blocks.{}.feed_forward_norm"),
    f"{_LAYER}self_attn.q_norm.weight": gain("blocks.{}.attention.query_norm"),
    f"{_LAYER}self_attn.k_norm.weight": gain("blocks.{}.attention.key_norm"),
    **{
        f"{_LAYER}linear_attn.in_proj_{part}.weight": Target(f"{_DELTA}project.weight")
        for part in ("qkv", "z", "b", "a")
    },
    f"{_LAYER}linear_attn.conv1d.weight": Target(f"{_DELTA}conv.weight"),
    f"{_LAYER}linear_attn.dt_bias": Target(f"{_DELTA}step_bias"),
    f"{_LAYER}linear_attn.A_log": Target(f"{_DELTA}decay"),
    f"{_LAYER}linear_attn.norm.weight": Target(f"{_DELTA}norm.weight"),
    f"{_LAYER}linear_attn.out_proj.weight": Target(f"{_DELTA}out.weight"),
    "model.norm.weight": gain("final_norm"),
    # A layer that predicts a further token, for drafts.
    "mtp.*": None,
}


def _weights(config: DecoderConfig) -> Table:
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


def _config(hf: ConfigReader) -> DecoderConfig:
    hf.skip("mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")
    hf.require("attn_output_gate")
    if hf.get("mlp_only_layers", list, []):
        raise ConfigError(f"{hf.name}: mlp_only_layers must be empty. Correct it.")
    rope = hf.nested("rope_scaling") or hf.nested("rope_parameters") or ConfigReader({})
    rope.skip("mrope_section", "mrope_interleaved")
    config = DecoderFormat(
        bias="attention_bias",
        head_dim=256,
        query_key_norm=True,
        attention={"gate": True},
        fraction=0.25,
    ).read(hf)
    period = hf.size("full_attention_interval", 4)
    default = [LINEAR if (i + 1) % period else FULL for i in range(layers_of(hf))]
    kinds = read_layer_kinds(hf, default, (FULL, LINEAR))
    return with_mixers(config, kinds, {LINEAR: _delta(hf, config)})


def _delta(hf: ConfigReader, config: DecoderConfig) -> GatedDeltaConfig:
    if (activation := config.blocks[0].dense.activation) != "silu":
        raise ConfigError(
            f"{hf.name}: hidden_act must be silu (got {activation}). "
            "This checkpoint cannot be loaded faithfully."
        )
    return GatedDeltaConfig(
        num_heads=hf.size("linear_num_value_heads", 32),
        num_key_heads=hf.size("linear_num_key_heads", 16),
        key_dim=hf.size("linear_key_head_dim", 128),
        value_dim=hf.size("linear_value_head_dim", 128),
        taps=hf.size("linear_conv_kernel_dim", 4),
        norm=config.blocks[0].norm,
    )


FAMILIES: dict[str, Family[DecoderConfig]] = {
    "qwen3_5_text": Family(config=_config, weights=_weights)
}
