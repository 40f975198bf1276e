"""OLMo 1 and 2 (Groeneveld et al. 2024, OLMo Team 2024).

OLMo has layer norms without weights, and may clip queries, keys and values. OLMo 2 normalises the
output of a sublayer, not its input, and queries and keys over all heads at once.
"""

from ortolan.modeling.config import DecoderConfig
from ortolan.modeling.families import llama
from ortolan.modeling.families.decoder import DecoderFormat, Keys
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.norms import layer_norm, rms
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.tables import without
from ortolan.modeling.weights import Table, Target

WEIGHTS_2: Table = {
    **without(llama.WEIGHTS, "input_layernorm", "post_attention"),
    "model.layers.{}.post_attention_layernorm.weight": Target("blocks.{}.attention_norm.weight"),
    "model.layers.{}.post_feedforward_layernorm.weight": Target(
        "blocks.{}.feed_forward_norm.weight"
    ),
    **llama.QUERY_KEY_NORMS,
}


def _olmo(hf: ConfigReader) -> DecoderConfig:
    return DecoderFormat(
        keys=Keys(eps=None),
        bias="attention_bias",
        attention={"clip": hf.get("clip_qkv", float, None)},
        norm=layer_norm(1e-5, scale=False, bias=False),
    ).read(hf)


FAMILIES: dict[str, Family[DecoderConfig]] = {
    "olmo": Family(config=_olmo, weights=llama.WEIGHTS),
    "olmo2": Family(
        config=DecoderFormat(
            bias="attention_bias",
            query_key_norm=True,
            attention={"norm_over": "all"},
            norm=rms(1e-5),
            placement="inner_post",
        ).read,
        weights=WEIGHTS_2,
    ),
}
