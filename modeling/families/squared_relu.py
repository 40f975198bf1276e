"""Families with the square of a ReLU: Nemotron, Arcee, nanochat, BitNet; and Apertus.

Nemotron (Adler et al. 2024) and Arcee are Llama with an MLP of two matrices. Nemotron has layer
norms and rotates half of each head. nanochat has norms without weights, those of queries and keys
after the rotation, which goes the other way. BitNet (Ma et al. 2024) is gated, and normalises the
input of the last matrix of either sublayer; its quantized checkpoints are not read. Apertus (Swiss
AI 2025) has a trained activation.
"""

from ortolan.modeling.config import DecoderConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import llama
from ortolan.modeling.families.decoder import DecoderFormat, Keys, altered, layer_norm, rms
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.llama import QUERY_KEY_NORMS
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

_BITNET: Table = {
    **llama.WEIGHTS,
    "model.layers.{}.self_attn.attn_sub_norm.weight": Target("blocks.{}.attention.out_norm.weight"),
    "model.layers.{}.mlp.ffn_sub_norm.weight": Target("blocks.{}.feed_forward.inner_norm.weight"),
}

_APERTUS: Table = {
    **without(_MLP, "layernorm", "inv_freq"),
    **QUERY_KEY_NORMS,
    "model.layers.{}.attention_layernorm.weight": Target("blocks.{}.attention_norm.weight"),
    "model.layers.{}.feedforward_layernorm.weight": Target("blocks.{}.feed_forward_norm.weight"),
    "model.layers.{}.mlp.act_fn.alpha_p": Target("blocks.{}.feed_forward.activation.right"),
    "model.layers.{}.mlp.act_fn.alpha_n": Target("blocks.{}.feed_forward.activation.left"),
    # The same two numbers in every model.
    "model.layers.{}.mlp.act_fn.beta": None,
    "model.layers.{}.mlp.act_fn.eps": None,
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
        fraction=1.0,
        backward=True,
    ).read(hf)
    return altered(config, embedding_norm=config.final_norm, final_softcap=cap)


def _bitnet(hf: ConfigReader) -> DecoderConfig:
    config = DecoderFormat(
        bias="attention_bias", activation="relu2", norm=rms(1e-5), theta=500_000.0
    ).read(hf)
    norm = config.final_norm
    return altered(config, attention={"out_norm": norm}, feed_forward={"inner_norm": norm})


def _apertus(hf: ConfigReader) -> DecoderConfig:
    if (activation := hf.get("hidden_act", str, "xielu")) != "xielu":
        raise ConfigError(
            f"{hf.name}: hidden_act must be 'xielu' (got {activation!r:.40}). "
            "This checkpoint cannot be loaded faithfully."
        )
    # No published model leaves these to a default.
    if not (hf.nested("rope_scaling") or hf.nested("rope_parameters")):
        raise ConfigError(
            f"{hf.name}: rope_scaling or rope_parameters is missing. "
            "Is this the model's own config?"
        )
    # Keys of the program that trained it; transformers reads none of them.
    hf.skip("post_norm", "qk_norm", "mlp_bias")
    config = DecoderFormat(
        keys=Keys(head_dim=None, activation=None),
        bias="attention_bias",
        query_key_norm=True,
        kind="mlp",
        norm=rms(1e-5),
        theta=12_000_000.0,
        fraction=1.0,
    ).read(hf)
    return altered(config, feed_forward={"activation": "xielu"})


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
    "bitnet": Family(config=_bitnet, weights=_BITNET),
    "apertus": Family(config=_apertus, weights=_APERTUS),
}
