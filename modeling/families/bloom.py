"""BLOOM (BigScience 2022): linear biases for positions, and a norm of the embedding."""

from ortolan.modeling.config import AlibiPositions, DecoderConfig, NormConfig
from ortolan.modeling.families.gpt_like import (
    DOWN,
    NORM_1,
    NORM_2,
    OUT,
    QKV,
    UP,
    gpt_block,
    gpt_like,
    grouped,
    named,
)
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Table, Target

BASE_MODEL_PREFIX = "transformer"


def WEIGHTS(config: DecoderConfig) -> Table:  # noqa: N802 - a module's constant
    """Published names to ours."""
    heads = config.blocks[0].attention.num_heads
    rows = grouped(heads, heads)
    return {
        "transformer.word_embeddings.weight": Target("embedding.weight"),
        **named(
            "transformer.h.{}.", "blocks.{}.", {"self_attention.query_key_value": QKV}, rows=rows
        ),
        **named(
            "transformer.h.{}.",
            "blocks.{}.",
            {
                "input_layernorm": NORM_1,
                "self_attention.dense": OUT,
                "post_attention_layernorm": NORM_2,
                "mlp.dense_h_to_4h": UP,
                "mlp.dense_4h_to_h": DOWN,
            },
        ),
        **named(
            "transformer.",
            "",
            {"word_embeddings_layernorm": "embedding_norm", "ln_f": "final_norm"},
        ),
        "lm_head.weight": Target("head.weight"),
    }


def config(hf: ConfigReader) -> DecoderConfig:
    """A `BloomConfig` of Hugging Face as a `DecoderConfig`."""
    # Of the program that trained it: the mlp is four times as wide in any case.
    hf.skip("n_inner", "offset_alibi", "skip_bias_add", "skip_bias_add_qkv")
    width = hf.size("n_embed" if "n_embed" in hf else "hidden_size")
    norm = NormConfig(kind="layer", eps=hf.get("layer_norm_epsilon", float, 1e-5))
    normed = hf.get("apply_residual_connection_post_layernorm", bool, False)
    block = gpt_block(
        width,
        heads=hf.size("num_attention_heads" if "num_attention_heads" in hf else "n_head"),
        intermediate_size=4 * width,
        activation="gelu_new",
        norm=norm,
        placement="pre_residual" if normed else "pre",
    )
    return gpt_like(
        hf,
        model_type="bloom",
        width=width,
        # Distances reach any length; this is how long the texts of its training were.
        context_length=hf.size("seq_length", 2048),
        positions=AlibiPositions(),
        embedding_norm=norm,
        blocks=(block,) * hf.size("n_layer", most=MAX_LAYERS),
    )
