"""GPT-NeoX-Japanese (abeja, 2022): its sublayers one after the other, with a single bias."""

from dataclasses import replace

from ortolan.modeling.config import DecoderConfig, NormConfig
from ortolan.modeling.families.gpt_like import gpt_block, gpt_like
from ortolan.modeling.families.gpt_neox import neox_rotary, neox_weights
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Table, Target

BASE_MODEL_PREFIX = "gpt_neox_japanese"


def WEIGHTS(config: DecoderConfig) -> Table:  # noqa: N802 - a module's constant
    """Published names to ours."""
    table = dict(neox_weights(config, BASE_MODEL_PREFIX))
    layer = f"{BASE_MODEL_PREFIX}.layers.{{}}.attention"
    del table[f"{layer}.dense.bias"]
    return table | {f"{layer}.dense_bias": Target("blocks.{}.attention.out.bias")}


def config(hf: ConfigReader) -> DecoderConfig:
    """A `GPTNeoXJapaneseConfig` of Hugging Face as a `DecoderConfig`."""
    width = hf.size("hidden_size")
    block = gpt_block(
        width,
        heads=hf.size("num_attention_heads"),
        intermediate_size=width * hf.size("intermediate_multiple_size", 4),
        activation=hf.get("hidden_act", str, "gelu"),
        norm=NormConfig(kind="layer", eps=hf.get("layer_norm_eps", float, 1e-5)),
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
    )
    last = replace(block, mixer=replace(block.attention, out_bias=True))
    context_length = hf.size("max_position_embeddings")
    return gpt_like(
        hf,
        model_type="gpt_neox_japanese",
        width=width,
        context_length=context_length,
        positions=neox_rotary(hf, block.attention.head_dim, context_length, fraction=1.0),
        blocks=(block,) * (hf.size("num_hidden_layers", most=MAX_LAYERS) - 1) + (last,),
    )
