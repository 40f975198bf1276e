"""MPT (MosaicML 2023): linear biases for positions, and no other bias."""

from dataclasses import replace

from ortolan.modeling.config import AlibiPositions, DecoderConfig, NormConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.gpt_like import (
    DOWN,
    NORM_1,
    NORM_2,
    OUT,
    QKV,
    UP,
    gpt_block,
    gpt_like,
    named,
)
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Target

BASE_MODEL_PREFIX = "transformer"

WEIGHTS = {
    "transformer.wte.weight": Target("embedding.weight"),
    **named(
        "transformer.blocks.{}.",
        "blocks.{}.",
        {
            "norm_1": NORM_1,
            "attn.Wqkv": QKV,
            "attn.out_proj": OUT,
            "norm_2": NORM_2,
            "ffn.up_proj": UP,
            "ffn.down_proj": DOWN,
        },
    ),
    **named("transformer.", "", {"norm_f": "final_norm"}),
    "lm_head.weight": Target("head.weight"),
}


def config(hf: ConfigReader) -> DecoderConfig:
    """An `MptConfig` of Hugging Face as a `DecoderConfig`.

    Raises:
        ConfigError: attention of a kind that no published model of the family has.
    """
    # Of the program that trained it; transformers has a single kind of each.
    hf.skip("embedding_fraction", "init_config", "init_device", "learned_pos_emb", "norm_type")
    hf.skip("verbose", "tokenizer_name", "emb_pdrop")
    hf.require("no_bias")
    if hf.get("expansion_ratio", int, 4) != 4 or hf.get("logit_scale", object, None) is not None:
        raise ConfigError(
            "config.json: expected expansion_ratio 4 and no logit_scale, got others. "
            "This checkpoint cannot be loaded faithfully."
        )
    width, heads = hf.size("d_model"), hf.size("n_heads")
    block = gpt_block(
        width,
        heads=heads,
        intermediate_size=4 * width,
        activation="gelu",
        norm=NormConfig(kind="layer", eps=hf.get("layer_norm_epsilon", float, 1e-5), bias=False),
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
    )
    scale, clip = _scores(hf.nested("attn_config") or ConfigReader({}))
    attention = replace(block.attention, scale=scale or block.attention.scale, clip=clip)
    return gpt_like(
        hf,
        model_type="mpt",
        width=width,
        context_length=hf.size("max_seq_len"),
        positions=AlibiPositions(),
        blocks=(replace(block, mixer=attention),) * hf.size("n_layers", most=MAX_LAYERS),
    )


def _scores(attention: ConfigReader) -> tuple[float | None, float | None]:
    """The scale of the scores, and the bound of what they are made of, if the config has them."""
    attention.skip("model_type", "attn_pdrop", "attn_impl", "attn_type")
    attention.require("alibi")
    for switch in ("prefix_lm", "qk_ln", "attn_uses_sequence_id"):
        attention.refuse(switch)
    if attention.get("alibi_bias_max", int, 8) != 8:
        raise ConfigError(
            f"{attention.name}: expected alibi_bias_max 8, got another. "
            "This checkpoint cannot be loaded faithfully."
        )
    # Zero stands for none.
    clip = attention.get("clip_qkv", float, None) or None
    return attention.get("softmax_scale", float, None), clip
