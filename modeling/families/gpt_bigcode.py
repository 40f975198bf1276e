"""SantaCoder, StarCoder (Li et al. 2023): GPT-2 with one key and value head for all queries."""

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
    grouped,
    named,
)
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Table, Target

BASE_MODEL_PREFIX = "transformer"


def WEIGHTS(config: DecoderConfig) -> Table:  # noqa: N802 - a module's constant
    """Published names to ours."""
    first = config.blocks[0].attention
    rows = grouped(first.num_heads, first.num_kv_heads)
    return {
        "transformer.wte.weight": Target("embedding.weight"),
        "transformer.wpe.weight": Target("position_embedding.weight"),
        **named("transformer.h.{}.", "blocks.{}.", {"attn.c_attn": QKV}, rows=rows),
        **named(
            "transformer.h.{}.",
            "blocks.{}.",
            {
                "ln_1": NORM_1,
                "attn.c_proj": OUT,
                "ln_2": NORM_2,
                "mlp.c_fc": UP,
                "mlp.c_proj": DOWN,
            },
        ),
        **named("transformer.", "", {"ln_f": "final_norm"}),
        "lm_head.weight": Target("head.weight"),
        # A causal mask that old versions of transformers saved.
        "transformer.h.{}.attn.bias": None,
    }


def config(hf: ConfigReader) -> DecoderConfig:
    """A `GPTBigCodeConfig` of Hugging Face as a `DecoderConfig`."""
    hf.skip("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels")
    # What multi_query says too.
    hf.skip("num_key_value_heads")
    # How old versions of transformers ran it.
    hf.skip("inference_runner", "max_batch_size", "max_sequence_length", "pad_key_length")
    hf.skip("pre_allocate_kv_cache", "validate_runner_input")
    width, heads = hf.size("n_embd"), hf.size("n_head")
    block = gpt_block(
        width,
        heads=heads,
        kv_heads=1 if hf.get("multi_query", bool, True) else heads,
        intermediate_size=hf.size("n_inner", 4 * width),
        activation=hf.get("activation_function", str, "gelu_pytorch_tanh"),
        norm=NormConfig(kind="layer", eps=hf.get("layer_norm_epsilon", float, 1e-5)),
        scale=None if hf.get("scale_attn_weights", bool, True) else 1.0,
    )
    return gpt_like(
        hf,
        model_type="gpt_bigcode",
        width=width,
        context_length=hf.size("n_positions"),
        positions=LearnedPositions(),
        blocks=(block,) * hf.size("n_layer", most=MAX_LAYERS),
    )
