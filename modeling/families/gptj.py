"""GPT-J (Wang and Komatsuzaki 2021): attention and mlp side by side, neighbours rotated."""

from ortolan.modeling.config import DecoderConfig, NormConfig, RotaryPositions
from ortolan.modeling.families.gpt_like import (
    DOWN,
    NORM_1,
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

SHARED = {
    "transformer.wte.weight": Target("embedding.weight"),
    **named(
        "transformer.h.{}.",
        "blocks.{}.",
        {"ln_1": NORM_1, "attn.out_proj": OUT, "mlp.fc_in": UP, "mlp.fc_out": DOWN},
    ),
    **named("transformer.", "", {"ln_f": "final_norm"}),
    "lm_head.weight": Target("head.weight"),
    "lm_head.bias": Target("head_bias"),
    # Masks and tables that old versions of transformers saved.
    "transformer.h.{}.attn.bias": None,
    "transformer.h.{}.attn.masked_bias": None,
    "transformer.h.{}.attn.causal_mask": None,
    "transformer.h.{}.attn.embed_positions": None,
}
"""What CodeGen names alike."""

WEIGHTS = {
    **SHARED,
    **named(
        "transformer.h.{}.attn.",
        "blocks.{}.",
        {"q_proj": QKV, "k_proj": QKV, "v_proj": QKV},
    ),
}


def config(hf: ConfigReader) -> DecoderConfig:
    """A `GPTJConfig` of Hugging Face as a `DecoderConfig`."""
    return gptj_like(hf, model_type="gptj")


def gptj_like(hf: ConfigReader, *, model_type: str) -> DecoderConfig:
    """A decoder with the keys of GPT-J."""
    hf.skip("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels")
    # Always so, whatever the config says.
    hf.skip("rotary", "n_ctx", "scale_attn_weights")
    width = hf.size("n_embd")
    block = gpt_block(
        width,
        heads=hf.size("n_head"),
        intermediate_size=hf.size("n_inner", 4 * width),
        activation=hf.get("activation_function", str, "gelu_new"),
        norm=NormConfig(kind="layer", eps=hf.get("layer_norm_epsilon", float, 1e-5)),
        qkv_bias=False,
        out_bias=False,
        placement="parallel",
    )
    return gpt_like(
        hf,
        model_type=model_type,
        width=width,
        context_length=hf.size("n_positions"),
        positions=RotaryPositions(dim=hf.size("rotary_dim", 64), interleaved=True),
        tied=False,
        head_bias=True,
        blocks=(block,) * hf.size("n_layer", most=MAX_LAYERS),
    )
