"""GPT-2 and those with its config keys: GPT, GPT-J, CodeGen, GPT-Neo.

GPT-2 (Radford et al. 2019) has layer norms before an MLP of two matrices, and learned positions.
GPT (Radford et al. 2018) has norms after the residual sums. GPT-J (Wang and Komatsuzaki 2021) and
CodeGen (Nijkamp et al. 2022) are parallel and rotary. GPT-Neo (Black et al. 2021) leaves scores
unscaled and has windows in some layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ortolan.modeling.config import DecoderConfig, LearnedPositions, RotaryPositions
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.decoder import DecoderFormat, Keys
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.norms import layer_norm
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.tables import DOWN, NORM_1, NORM_2, OUT, QKV, UP, layer, qkv
from ortolan.modeling.weights import Entry, Rows, Table, Target

GPT2 = DecoderFormat(
    keys=Keys(
        width="n_embd",
        heads="n_head",
        kv_heads=None,
        head_dim=None,
        layers="n_layer",
        context="n_positions",
        hidden="n_inner",
        activation="activation_function",
        eps="layer_norm_epsilon",
    ),
    bias=True,
    mlp_bias=True,
    kind="mlp",
    activation="gelu_new",
    expansion=4,
    norm=layer_norm(1e-5),
    positions=LearnedPositions(),
    tied=True,
)

_CODEGEN_SLICES = Rows(4, 3, -1, ((0, 1), (2, 3), (1, 2)))
"""Each of four slices, one for each core it was trained on, holds queries, values and keys."""


ENDS = {
    "wte.weight": "embedding.weight",
    "wpe.weight": "position_embedding.weight",
    "ln_f.weight": "final_norm.weight",
    "ln_f.bias": "final_norm.bias",
}


def _weights(
    modules: Mapping[str, str],
    *,
    ends: Mapping[str, str] = ENDS,
    masks: Sequence[str] = ("attn.bias", "attn.masked_bias"),
) -> dict[str, Entry]:
    """The weights of a GPT; `modules` are those of a layer."""
    return {
        **{f"transformer.{theirs}": Target(ours) for theirs, ours in ends.items()},
        **layer("transformer.h.{}.", modules),
        "lm_head.weight": Target("head.weight"),
        # Causal masks that old versions of transformers saved.
        **{f"transformer.h.{{}}.{mask}": None for mask in masks},
    }


_NORMS = {"ln_1": NORM_1, "ln_2": NORM_2}
_MLP = {"mlp.c_fc": UP, "mlp.c_proj": DOWN}

_TRANSPOSED = {
    f"transformer.h.{{}}.{theirs}.weight": Target(f"blocks.{{}}.{ours}.weight", transposed=True)
    for theirs, ours in {"attn.c_attn": QKV, "attn.c_proj": OUT, **_MLP}.items()
}

_GPT2_LAYER = {**_NORMS, "attn.c_attn": QKV, "attn.c_proj": OUT, **_MLP}

_GPT2_WEIGHTS: Table = {
    **_weights(_GPT2_LAYER),
    **_TRANSPOSED,
    "multiple_choice_head.*": None,  # alongside the language model in a GPT2DoubleHeadsModel
}

_GPT_WEIGHTS: Table = {
    **_weights(
        _GPT2_LAYER,
        ends={
            "tokens_embed.weight": "embedding.weight",
            "positions_embed.weight": "position_embedding.weight",
        },
        masks=("attn.bias",),
    ),
    **_TRANSPOSED,
    "multiple_choice_head.*": None,
    # The numbers 0, 1, ..., which old versions of transformers saved.
    "transformer.position_ids": None,
}

_GPTJ_SHARED = {
    **_weights(
        {"ln_1": NORM_1, "attn.out_proj": OUT, "mlp.fc_in": UP, "mlp.fc_out": DOWN},
        ends={name: ours for name, ours in ENDS.items() if name != "wpe.weight"},
    ),
    "lm_head.bias": Target("head_bias"),
    "transformer.h.{}.attn.causal_mask": None,
    "transformer.h.{}.attn.embed_positions": None,
}

_GPT_NEO_WEIGHTS = _weights(
    {
        **_NORMS,
        **qkv("attn.attention.{}_proj"),
        "attn.attention.out_proj": OUT,
        **_MLP,
    },
    masks=("attn.attention.bias", "attn.attention.masked_bias"),
)


def _skip_summary(hf: ConfigReader) -> None:
    """Skip the keys of heads that are not served."""
    hf.skip("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels")


def _gpt2(hf: ConfigReader) -> DecoderConfig:
    _skip_summary(hf)
    # Upcasting changes the rounding of half precision only.
    hf.skip("reorder_and_upcast_attn", "n_ctx", "summary_first_dropout")
    scaled = hf.get("scale_attn_weights", bool, True)
    config = (GPT2 if scaled else replace(GPT2, attention={"scale": 1.0})).read(hf)
    if not hf.get("scale_attn_by_inverse_layer_idx", bool, False):
        return config
    blocks = tuple(
        replace(block, mixer=replace(block.attention, scale=block.attention.scale / number))
        for number, block in enumerate(config.blocks, 1)
    )
    return replace(config, blocks=blocks)


def _gpt(hf: ConfigReader) -> DecoderConfig:
    _skip_summary(hf)
    hf.skip("n_ctx", "n_special", "predict_special_tokens")
    activation = hf.get("afn", str, "gelu")
    return replace(
        GPT2,
        keys=replace(GPT2.keys, hidden=None, activation=None),
        # It was the first to use the approximation, by the plain name.
        activation="gelu_new" if activation == "gelu" else activation,
        placement="post",
    ).read(hf)


def _gptj(hf: ConfigReader) -> DecoderConfig:
    _skip_summary(hf)
    # Fixed, whatever the config says.
    hf.skip("rotary", "n_ctx", "scale_attn_weights")
    return replace(
        GPT2,
        bias=False,
        placement="parallel",
        positions=RotaryPositions(dim=hf.size("rotary_dim", 64), interleaved=True),
        tied=False,
        decoder={"head_bias": True},
    ).read(hf)


def _codegen(hf: ConfigReader) -> DecoderConfig:
    heads, slices = hf.size("n_head"), _CODEGEN_SLICES.groups
    if heads % slices:
        raise ConfigError(
            f"{hf.name}: n_head must be divisible by {slices} (got {heads}). Correct it."
        )
    return _gptj(hf)


def _gpt_neo(hf: ConfigReader) -> DecoderConfig:
    _skip_summary(hf)
    return replace(
        GPT2,
        keys=replace(
            GPT2.keys,
            width="hidden_size",
            heads="num_heads",
            layers="num_layers",
            context="max_position_embeddings",
            hidden="intermediate_size",
        ),
        qkv_bias=False,
        attention={"scale": 1.0},
        windows=_neo_windows,
    ).read(hf)


def _neo_windows(hf: ConfigReader) -> list[int | None]:
    """The window of each layer, by `attention_layers` or else `attention_types`."""
    windows = {"global": None, "local": hf.size("window_size", 256)}
    layers, kinds = hf.size("num_layers", most=MAX_LAYERS), _neo_kinds(hf)
    if len(kinds) != layers or not set(kinds) <= windows.keys():
        key = "attention_layers" if hf.is_list("attention_layers") else "attention_types"
        raise ConfigError(
            f"{hf.name}: {key} must hold global or local for {layers} layers (got {kinds!r:.80}). "
            "Correct it."
        )
    return [windows[kind] for kind in kinds]


def _neo_kinds(hf: ConfigReader) -> list[str]:
    pairs = hf.get("attention_types", list, [[["global", "local"], 12]])
    kinds = hf.get("attention_layers", list, None)
    if kinds is not None:
        return [str(kind) for kind in kinds]
    try:
        return [str(kind) for kinds, repeats in pairs for kind in list(kinds) * min(repeats, 4096)]
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{hf.name}: attention_types must hold pairs of kinds and repeats (got {pairs!r:.80}). "
            "Correct it."
        ) from error


FAMILIES: dict[str, Family[DecoderConfig]] = {
    "gpt2": Family(
        config=_gpt2,
        weights=_GPT2_WEIGHTS,
        base_model_prefix="transformer",
    ),
    "openai-gpt": Family(config=_gpt, weights=_GPT_WEIGHTS, base_model_prefix="transformer"),
    "gptj": Family(
        config=_gptj,
        weights={
            **_GPTJ_SHARED,
            **layer("transformer.h.{}.attn.", qkv("{}_proj")),
        },
        base_model_prefix="transformer",
    ),
    "codegen": Family(
        config=_codegen,
        weights={
            **_GPTJ_SHARED,
            **layer("transformer.h.{}.", {"attn.qkv_proj": QKV}, rows=_CODEGEN_SLICES),
        },
        base_model_prefix="transformer",
    ),
    "gpt_neo": Family(config=_gpt_neo, weights=_GPT_NEO_WEIGHTS, base_model_prefix="transformer"),
}
