"""Families with the square of a relu: Nemotron, Arcee, Jais 2, nanochat, BitNet.

Nemotron (Adler et al. 2024), Arcee and Jais 2 are Llama with an mlp of two matrices; Nemotron and
Jais 2 have layer norms, those of Nemotron with gains stored less one, and Nemotron turns half of
each head. nanochat has norms without weights, those of queries and keys after the rotation, which
goes the other way. BitNet (Ma et al. 2024) is gated and norms what enters the last product of
either sublayer; these are checkpoints without a quantization that a step would have to repeat.
"""

from ortolan.modeling.config import DecoderConfig, NormConfig
from ortolan.modeling.families import llama
from ortolan.modeling.families.llama import LlamaFamily
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.rope import read_rotary
from ortolan.modeling.weights import Table, Target

_MLP: Table = {name: target for name, target in llama.WEIGHTS.items() if "gate_proj" not in name}

_NORMS = {
    "model.layers.{}.input_layernorm": "blocks.{}.attention_norm",
    "model.layers.{}.post_attention_layernorm": "blocks.{}.feed_forward_norm",
    "model.norm": "final_norm",
}

_BIASES = {f"{theirs}.bias": Target(f"{ours}.bias") for theirs, ours in _NORMS.items()}

_GAINS = {
    f"{theirs}.weight": Target(f"{ours}.weight", offset=1.0) for theirs, ours in _NORMS.items()
}

_NANOCHAT: Table = {
    **{
        name: target
        for name, target in _MLP.items()
        if not any(part in name for part in ("norm", "up_proj", "down_proj"))
    },
    "model.layers.{}.mlp.fc1.weight": Target("blocks.{}.feed_forward.up.weight"),
    "model.layers.{}.mlp.fc2.weight": Target("blocks.{}.feed_forward.down.weight"),
}

_SUB_NORMS = {
    "model.layers.{}.self_attn.attn_sub_norm.weight": Target("blocks.{}.attention.out_norm.weight"),
    "model.layers.{}.mlp.ffn_sub_norm.weight": Target("blocks.{}.feed_forward.inner_norm.weight"),
}


def _nemotron(hf: ConfigReader) -> DecoderConfig:
    bias = hf.get("attention_bias", bool, False)
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    return llama.llama_like(
        hf,
        model_type="nemotron",
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=hf.get("mlp_bias", bool, False),
        positions=read_rotary(
            hf,
            head_dim=hf.size("head_dim", width // heads),
            context_length=hf.size("max_position_embeddings"),
            fraction=0.5,
        ),
        kind="mlp",
        activation="relu2",
        norm=NormConfig(kind="layer", eps=hf.get("norm_eps", float, 1e-5)),
    )


def _arcee(hf: ConfigReader) -> DecoderConfig:
    bias = hf.get("attention_bias", bool, False)
    return llama.llama_like(
        hf,
        model_type="arcee",
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=hf.get("mlp_bias", bool, False),
        kind="mlp",
        activation="relu2",
        eps=1e-5,
    )


def _jais2(hf: ConfigReader) -> DecoderConfig:
    bias = hf.get("attention_bias", bool, True)
    return llama.llama_like(
        hf,
        model_type="jais2",
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=hf.get("mlp_bias", bool, True),
        kind="mlp",
        activation="relu2",
        norm=NormConfig(kind="layer", eps=hf.get("layer_norm_eps", float, 1e-5)),
    )


def _nanochat(hf: ConfigReader) -> DecoderConfig:
    hf.refuse("attention_bias")
    norm = NormConfig(kind="rms", eps=hf.get("rms_norm_eps", float, 1e-6), scale=False)
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    positions = read_rotary(
        hf,
        head_dim=hf.size("head_dim", width // heads),
        context_length=hf.size("max_position_embeddings"),
        backward=True,
    )
    made = llama.llama_like(
        hf,
        model_type="nanochat",
        positions=positions,
        kind="mlp",
        activation="relu2",
        norm=norm,
    )
    cap = "final_logit_softcapping"
    return llama.altered(
        made,
        attention={"query_key_norm": norm, "norm_after_rotary": True},
        embedding_norm=norm,
        final_softcap=hf.get(cap, float, None) if cap in hf else 15.0,
    )


def _bitnet(hf: ConfigReader) -> DecoderConfig:
    bias = hf.get("attention_bias", bool, False)
    made = llama.llama_like(
        hf,
        model_type="bitnet",
        qkv_bias=bias,
        out_bias=bias,
        theta=500_000.0,
        activation="relu2",
        eps=1e-5,
    )
    norm = made.final_norm
    return llama.altered(made, attention={"out_norm": norm}, feed_forward={"inner_norm": norm})


NEMOTRON = LlamaFamily(config=_nemotron, WEIGHTS={**_MLP, **_BIASES, **_GAINS})
ARCEE = LlamaFamily(config=_arcee, WEIGHTS=_MLP)
JAIS2 = LlamaFamily(config=_jais2, WEIGHTS={**_MLP, **_BIASES})
NANOCHAT = LlamaFamily(config=_nanochat, WEIGHTS=_NANOCHAT)
BITNET = LlamaFamily(config=_bitnet, WEIGHTS={**llama.WEIGHTS, **_SUB_NORMS})
