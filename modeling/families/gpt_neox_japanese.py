"""GPT-NeoX-Japanese (abeja, 2022): its sublayers one after the other, with a single bias."""

from dataclasses import replace

from ortolan.modeling.config import DecoderConfig
from ortolan.modeling.families.gpt_neox import neox_like, neox_weights
from ortolan.modeling.families.reader import ConfigReader
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
    decoder = neox_like(
        hf,
        model_type="gpt_neox_japanese",
        width=width,
        intermediate_size=int(width * hf.get("intermediate_multiple_size", float, 4.0)),
        fraction=1.0,
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
    )
    *others, last = decoder.blocks
    biased = replace(last, attention=replace(last.attention, out_bias=True))
    return replace(decoder, blocks=(*others, biased))
