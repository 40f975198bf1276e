"""GPT-Neo (Black et al. 2021): GPT-2 whose scores are not scaled, with windows in some layers."""

from dataclasses import replace

from ortolan.modeling.config import DecoderConfig, LearnedPositions, NormConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.gpt_like import (
    DOWN,
    NORM_1,
    NORM_2,
    OUT,
    QKV,
    UP,
    gpt_block,
    gpt_like,
    named,
)
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Target

BASE_MODEL_PREFIX = "transformer"

WEIGHTS = {
    "transformer.wte.weight": Target("embedding.weight"),
    "transformer.wpe.weight": Target("position_embedding.weight"),
    **named(
        "transformer.h.{}.",
        "blocks.{}.",
        {
            "ln_1": NORM_1,
            "attn.attention.q_proj": QKV,
            "attn.attention.k_proj": QKV,
            "attn.attention.v_proj": QKV,
            "attn.attention.out_proj": OUT,
            "ln_2": NORM_2,
            "mlp.c_fc": UP,
            "mlp.c_proj": DOWN,
        },
    ),
    **named("transformer.", "", {"ln_f": "final_norm"}),
    "lm_head.weight": Target("head.weight"),
    # Causal masks that old versions of transformers saved.
    "transformer.h.{}.attn.attention.bias": None,
    "transformer.h.{}.attn.attention.masked_bias": None,
}


def config(hf: ConfigReader) -> DecoderConfig:
    """A `GPTNeoConfig` of Hugging Face as a `DecoderConfig`."""
    hf.skip("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels")
    width, layers = hf.size("hidden_size"), hf.size("num_layers", most=MAX_LAYERS)
    block = gpt_block(
        width,
        heads=hf.size("num_heads"),
        intermediate_size=hf.size("intermediate_size", 4 * width),
        activation=hf.get("activation_function", str, "gelu_new"),
        norm=NormConfig(kind="layer", eps=hf.get("layer_norm_epsilon", float, 1e-5)),
        scale=1.0,
        qkv_bias=False,
    )
    local = replace(block.attention, sliding_window=hf.size("window_size", 256))
    kinds = {"global": block, "local": replace(block, mixer=local)}
    key = "attention_layers" if hf.is_list("attention_layers") else "attention_types"
    names = _layer_kinds(hf)
    if len(names) != layers or not set(names) <= kinds.keys():
        raise ConfigError(
            f"config.json: expected {key} of {layers} layers, global or local, got "
            f"{names!r:.80}. Correct it."
        )
    return gpt_like(
        hf,
        model_type="gpt_neo",
        width=width,
        context_length=hf.size("max_position_embeddings"),
        positions=LearnedPositions(),
        blocks=tuple(kinds[name] for name in names),
    )


def _layer_kinds(hf: ConfigReader) -> list[str]:
    """The kind of each layer: `attention_layers`, or else `[[kinds, repeats], ...]` written out."""
    pairs = hf.get("attention_types", list, [[["global", "local"], 12]])
    named = hf.get("attention_layers", list, None)
    if named is not None:
        return [str(kind) for kind in named]
    try:
        return [str(kind) for kinds, repeats in pairs for kind in list(kinds) * min(repeats, 4096)]
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"config.json: expected attention_types as pairs of kinds and repeats, got "
            f"{pairs!r:.80}. Correct it."
        ) from error
