"""CodeGen (Nijkamp et al. 2022): GPT-J whose queries, values and keys lie in four slices."""

from ortolan.modeling.config import DecoderConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import gptj
from ortolan.modeling.families.gpt_like import QKV, named
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.weights import Rows

BASE_MODEL_PREFIX = gptj.BASE_MODEL_PREFIX

SLICES = Rows(4, 3, -1, ((0, 1), (2, 3), (1, 2)))
"""Each has its heads' queries, values and keys, in this order: one for each core it ran on."""

WEIGHTS = {
    **gptj.SHARED,
    **named("transformer.h.{}.", "blocks.{}.", {"attn.qkv_proj": QKV}, rows=SLICES),
}


def config(hf: ConfigReader) -> DecoderConfig:
    """A `CodeGenConfig` of Hugging Face as a `DecoderConfig`."""
    heads = hf.size("n_head")
    if heads % SLICES.groups:
        raise ConfigError(
            f"config.json: expected n_head divisible by {SLICES.groups}, got {heads}. Correct it."
        )
    return gptj.gptj_like(hf, model_type="codegen")
