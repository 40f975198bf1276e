"""GPT-NeoX and Pythia (Black et al. 2022), and those with its layers.

GPT-NeoX-Japanese (abeja 2022) has a single bias, in the last layer. Phi-1, 1.5 and 2 (Li et al.
2023) are parallel with biases everywhere; StarCoder2 (Lozhkov et al. 2024) has windows.
"""

from dataclasses import replace

from ortolan.modeling.config import DecoderConfig
from ortolan.modeling.families.decoder import DecoderFormat, Keys
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.layer_kinds import one_window
from ortolan.modeling.families.norms import layer_norm
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.tables import (
    DOWN,
    NORM_1,
    NORM_2,
    OUT,
    QKV,
    UP,
    grouped,
    layer,
    linear,
    qkv,
)
from ortolan.modeling.weights import Entry, Table, Target

NEOX = DecoderFormat(
    keys=Keys(
        kv_heads=None,
        head_dim=None,
        eps="layer_norm_eps",
        theta="rotary_emb_base",
        fraction="rotary_pct",
    ),
    bias=True,
    mlp_bias=True,
    kind="mlp",
    activation="gelu",
    norm=layer_norm(1e-5),
)

_LAYER = "model.layers.{}."


def _neox_weights(config: DecoderConfig, prefix: str = "gpt_neox") -> dict[str, Entry]:
    heads = config.blocks[0].attention.num_heads
    layers = f"{prefix}.layers.{{}}."
    return {
        # The head by its two names.
        "embed_out.*": "lm_head.",
        "lm_head.weight": Target("head.weight"),
        f"{prefix}.embed_in.weight": Target("embedding.weight"),
        **layer(layers, {"attention.query_key_value": QKV}, rows=grouped(heads, heads)),
        **layer(
            layers,
            {
                "input_layernorm": NORM_1,
                "attention.dense": OUT,
                "post_attention_layernorm": NORM_2,
                "mlp.dense_h_to_4h": UP,
                "mlp.dense_4h_to_h": DOWN,
            },
        ),
        **linear({f"{prefix}.final_layer_norm": "final_norm"}),
        # Masks and tables that old versions of transformers saved.
        f"{layers}attention.bias": None,
        f"{layers}attention.masked_bias": None,
        f"{layers}attention.rotary_emb.inv_freq": None,
    }


def _japanese_weights(config: DecoderConfig) -> Table:
    table = _neox_weights(config, "gpt_neox_japanese")
    dense = "gpt_neox_japanese.layers.{}.attention.dense"
    del table[f"{dense}.bias"]
    return {**table, f"{dense}_bias": Target("blocks.{}.attention.out.bias")}


_PHI_WEIGHTS: Table = {
    "model.embed_tokens.weight": Target("embedding.weight"),
    **layer(
        _LAYER,
        {
            "input_layernorm": NORM_1,
            **qkv("self_attn.{}_proj"),
            "self_attn.dense": OUT,
            "self_attn.q_layernorm": "attention.query_norm",
            "self_attn.k_layernorm": "attention.key_norm",
            "mlp.fc1": UP,
            "mlp.fc2": DOWN,
        },
    ),
    **linear({"model.final_layernorm": "final_norm"}),
    "lm_head.weight": Target("head.weight"),
    "lm_head.bias": Target("head_bias"),
    # A table that old versions of transformers saved.
    f"{_LAYER}self_attn.rotary_emb.inv_freq": None,
}

_STARCODER2_WEIGHTS: Table = {
    "model.embed_tokens.weight": Target("embedding.weight"),
    **layer(
        _LAYER,
        {
            "input_layernorm": NORM_1,
            **qkv("self_attn.{}_proj"),
            "self_attn.o_proj": OUT,
            "post_attention_layernorm": NORM_2,
            "mlp.c_fc": UP,
            "mlp.c_proj": DOWN,
        },
    ),
    **linear({"model.norm": "final_norm"}),
    "lm_head.weight": Target("head.weight"),
}


def _gpt_neox(hf: ConfigReader) -> DecoderConfig:
    parallel = hf.get("use_parallel_residual", bool, True)
    form = replace(
        NEOX,
        bias=("attention_bias", True),
        expansion=4,
        placement="parallel_norms" if parallel else "pre",
        fraction=0.25,
    )
    return form.read(hf)


def _gpt_neox_japanese(hf: ConfigReader) -> DecoderConfig:
    form = replace(
        NEOX,
        bias=False,
        mlp_bias=False,
        hidden=hf.size("hidden_size") * hf.size("intermediate_multiple_size", 4),
        tied=True,
        fraction=1.0,
    )
    config = form.read(hf)
    *others, last = config.blocks
    last = replace(last, mixer=replace(last.attention, out_bias=True))
    return replace(config, blocks=(*others, last))


def _phi(hf: ConfigReader) -> DecoderConfig:
    return replace(
        NEOX,
        keys=Keys(head_dim=None, eps="layer_norm_eps"),
        query_key_norm=hf.get("qk_layernorm", bool, False),
        activation="gelu_new",
        placement="parallel",
        fraction=0.5,
        decoder={"head_bias": True},
    ).read(hf)


def _starcoder2(hf: ConfigReader) -> DecoderConfig:
    # What every model of the family has, and keys of its predecessor.
    hf.skip("norm_type", "mlp_type", "activation_function", "layer_norm_epsilon")
    hf.skip("scale_attn_weights")
    return replace(
        NEOX,
        keys=Keys(head_dim=None, eps="norm_epsilon"),
        bias=("use_bias", True),
        mlp_bias=("use_bias", True),
        kv_heads=hf.size("num_key_value_heads"),
        windows=one_window,
        activation="gelu_pytorch_tanh",
        tied=True,
    ).read(hf)


FAMILIES: dict[str, Family[DecoderConfig]] = {
    "gpt_neox": Family(config=_gpt_neox, weights=_neox_weights, base_model_prefix="gpt_neox"),
    "gpt_neox_japanese": Family(
        config=_gpt_neox_japanese,
        weights=_japanese_weights,
        base_model_prefix="gpt_neox_japanese",
    ),
    "phi": Family(config=_phi, weights=_PHI_WEIGHTS),
    "starcoder2": Family(config=_starcoder2, weights=_STARCODER2_WEIGHTS),
}
