"""Families with the square of a ReLU: Nemotron (Adler et al. 2024), Arcee and nanochat.

Their MLPs have two matrices. Nemotron has layer norms and rotates half of each head. nanochat has
norms without weights, those of queries and keys after the rotation, which goes the other way.
"""

from ortolan.modeling.config import DecoderConfig
from ortolan.modeling.families import llama
from ortolan.modeling.families.decoder import DecoderFormat, Keys, altered
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.norms import layer_norm, rms
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.tables import DOWN, UP, gain, without
from ortolan.modeling.weights import Table, Target

_MLP = without(llama.WEIGHTS, "gate_proj")

_NORMS = {
    "model.layers.{}.input_layernorm": "blocks.{}.attention_norm",
    "model.layers.{}.post_attention_layernorm": "blocks.{}.feed_forward_norm",
    "model.norm": "final_norm",
}

_BIASES = {f"{theirs}.bias": Target(f"{ours}.bias") for theirs, ours in _NORMS.items()}

_NEMOTRON: Table = {
    **_MLP,
    **_BIASES,
    **{f"{theirs}.weight": gain(ours) for theirs, ours in _NORMS.items()},
}

_NANOCHAT: Table = {
    **without(_MLP, "norm", "up_proj", "down_proj"),
    "model.layers.{}.mlp.fc1.weight": Target(f"blocks.{{}}.{UP}.weight"),
    "model.layers.{}.mlp.fc2.weight": Target(f"blocks.{{}}.{DOWN}.weight"),
}


def _nanochat(hf: ConfigReader) -> DecoderConfig:
    hf.refuse("attention_bias")
    cap = hf.nullable("final_logit_softcapping", float, 15.0)
    config = DecoderFormat(
        query_key_norm=True,
        attention={"norm_after_rotary": True},
        kind="mlp",
        activation="relu2",
        norm=rms(1e-6, scale=False),
        backward=True,
    ).read(hf)
    return altered(config, embedding_norm=config.final_norm, final_softcap=cap)


FAMILIES: dict[str, Family[DecoderConfig]] = {
    "nemotron": Family(
        config=DecoderFormat(
            keys=Keys(eps="norm_eps"),
            bias="attention_bias",
            mlp_bias="mlp_bias",
            kind="mlp",
            activation="relu2",
            norm=layer_norm(1e-5),
            fraction=0.5,
        ).read,
        weights=_NEMOTRON,
    ),
    "arcee": Family(
        config=DecoderFormat(
            bias="attention_bias",
            mlp_bias="mlp_bias",
            kind="mlp",
            activation="relu2",
            norm=rms(1e-5),
        ).read,
        weights=_MLP,
    ),
    "nanochat": Family(config=_nanochat, weights=_NANOCHAT),
}
