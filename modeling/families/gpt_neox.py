"""GPT-NeoX, Pythia (Black et al. 2022): attention and mlp side by side, with a norm each."""

from ortolan.modeling.config import DecoderConfig, NormConfig, RotaryPositions
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
from ortolan.modeling.families.rope import read_rotary
from ortolan.modeling.weights import Table, Target

BASE_MODEL_PREFIX = "gpt_neox"


def WEIGHTS(config: DecoderConfig) -> Table:  # noqa: N802 - a module's constant
    """Published names to ours."""
    return neox_weights(config, BASE_MODEL_PREFIX)


def neox_weights(config: DecoderConfig, prefix: str) -> Table:
    """The names of GPT-NeoX below another prefix."""
    heads = config.blocks[0].attention.num_heads
    layers = f"{prefix}.layers.{{}}."
    return {
        # The head by its two names.
        "embed_out.*": "lm_head.",
        "lm_head.weight": Target("head.weight"),
        f"{prefix}.embed_in.weight": Target("embedding.weight"),
        **named(
            layers, "blocks.{}.", {"attention.query_key_value": QKV}, rows=grouped(heads, heads)
        ),
        **named(
            layers,
            "blocks.{}.",
            {
                "input_layernorm": NORM_1,
                "attention.dense": OUT,
                "post_attention_layernorm": NORM_2,
                "mlp.dense_h_to_4h": UP,
                "mlp.dense_4h_to_h": DOWN,
            },
        ),
        **named(f"{prefix}.", "", {"final_layer_norm": "final_norm"}),
        # Masks and tables that old versions of transformers saved.
        f"{layers}attention.bias": None,
        f"{layers}attention.masked_bias": None,
        f"{layers}attention.rotary_emb.inv_freq": None,
    }


def config(hf: ConfigReader) -> DecoderConfig:
    """A `GPTNeoXConfig` of Hugging Face as a `DecoderConfig`."""
    width, bias = hf.size("hidden_size"), hf.get("attention_bias", bool, True)
    block = gpt_block(
        width,
        heads=hf.size("num_attention_heads"),
        intermediate_size=hf.size("intermediate_size", 4 * width),
        activation=hf.get("hidden_act", str, "gelu"),
        norm=NormConfig(kind="layer", eps=hf.get("layer_norm_eps", float, 1e-5)),
        qkv_bias=bias,
        out_bias=bias,
        placement="parallel_norms" if hf.get("use_parallel_residual", bool, True) else "pre",
    )
    context_length = hf.size("max_position_embeddings")
    return gpt_like(
        hf,
        model_type="gpt_neox",
        width=width,
        context_length=context_length,
        positions=neox_rotary(hf, block.attention.head_dim, context_length, fraction=0.25),
        blocks=(block,) * hf.size("num_hidden_layers", most=MAX_LAYERS),
        tied=False,
    )


def neox_rotary(
    hf: ConfigReader, head_dim: int, context_length: int, *, fraction: float
) -> RotaryPositions:
    """Rotary positions by the keys of GPT-NeoX; `fraction` of the channels by default."""
    return read_rotary(
        hf,
        head_dim=head_dim,
        context_length=context_length,
        theta=hf.get("rotary_emb_base", float, 10_000.0),
        fraction=hf.get("rotary_pct", float, fraction),
    )
