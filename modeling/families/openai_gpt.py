"""GPT (Radford et al. 2018): learned positions, and norms after each residual sum."""

from ortolan.modeling.config import DecoderConfig, LearnedPositions, NormConfig
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

_MATRICES = {"attn.c_attn": QKV, "attn.c_proj": OUT, "mlp.c_fc": UP, "mlp.c_proj": DOWN}

WEIGHTS = {
    "transformer.tokens_embed.weight": Target("embedding.weight"),
    "transformer.positions_embed.weight": Target("position_embedding.weight"),
    **{
        f"transformer.h.{{}}.{theirs}.{kind}": Target(
            f"blocks.{{}}.{ours}.{kind}", transposed=kind == "weight"
        )
        for theirs, ours in _MATRICES.items()
        for kind in ("weight", "bias")
    },
    **named("transformer.h.{}.", "blocks.{}.", {"ln_1": NORM_1, "ln_2": NORM_2}),
    "lm_head.weight": Target("head.weight"),
    "multiple_choice_head.*": None,
    # What old versions of transformers saved: a causal mask, and the numbers 0, 1, ...
    "transformer.h.{}.attn.bias": None,
    "transformer.position_ids": None,
}


def config(hf: ConfigReader) -> DecoderConfig:
    """An `OpenAIGPTConfig` of Hugging Face as a `DecoderConfig`."""
    hf.skip("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels")
    hf.skip("n_ctx", "n_special", "predict_special_tokens")
    width = hf.size("n_embd")
    activation = hf.get("afn", str, "gelu")
    block = gpt_block(
        width,
        heads=hf.size("n_head"),
        intermediate_size=4 * width,
        activation="gelu_new" if activation == "gelu" else activation,
        norm=NormConfig(kind="layer", eps=hf.get("layer_norm_epsilon", float, 1e-5)),
        placement="post",
    )
    return gpt_like(
        hf,
        model_type="openai-gpt",
        width=width,
        context_length=hf.size("n_positions"),
        positions=LearnedPositions(),
        # It was the first to use the approximation, by the plain name.
        blocks=(block,) * hf.size("n_layer", most=MAX_LAYERS),
    )
