"""GPT-2 (Radford et al. 2019): pre-norm, learned positions, layer norm, one mlp."""

from dataclasses import replace

from ortolan.modeling.config import DecoderConfig, LearnedPositions, NormConfig
from ortolan.modeling.families.activations import write_activation
from ortolan.modeling.families.gpt_like import gpt_block, gpt_like
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Target

BASE_MODEL_PREFIX = "transformer"

WEIGHTS: dict[str, Target | None] = {
    "transformer.wte.weight": Target("embedding.weight"),
    "transformer.wpe.weight": Target("position_embedding.weight"),
    "transformer.h.{}.ln_1.weight": Target("blocks.{}.attention_norm.weight"),
    "transformer.h.{}.ln_1.bias": Target("blocks.{}.attention_norm.bias"),
    "transformer.h.{}.attn.c_attn.weight": Target("blocks.{}.attention.qkv.weight", True),
    "transformer.h.{}.attn.c_attn.bias": Target("blocks.{}.attention.qkv.bias"),
    "transformer.h.{}.attn.c_proj.weight": Target("blocks.{}.attention.out.weight", True),
    "transformer.h.{}.attn.c_proj.bias": Target("blocks.{}.attention.out.bias"),
    "transformer.h.{}.ln_2.weight": Target("blocks.{}.feed_forward_norm.weight"),
    "transformer.h.{}.ln_2.bias": Target("blocks.{}.feed_forward_norm.bias"),
    "transformer.h.{}.mlp.c_fc.weight": Target("blocks.{}.feed_forward.up.weight", True),
    "transformer.h.{}.mlp.c_fc.bias": Target("blocks.{}.feed_forward.up.bias"),
    "transformer.h.{}.mlp.c_proj.weight": Target("blocks.{}.feed_forward.down.weight", True),
    "transformer.h.{}.mlp.c_proj.bias": Target("blocks.{}.feed_forward.down.bias"),
    "transformer.ln_f.weight": Target("final_norm.weight"),
    "transformer.ln_f.bias": Target("final_norm.bias"),
    "lm_head.weight": Target("head.weight"),
    "multiple_choice_head.*": None,  # beside the language model, in a GPT2DoubleHeadsModel
    # Causal masks that old versions of transformers saved.
    "transformer.h.{}.attn.bias": None,
    "transformer.h.{}.attn.masked_bias": None,
}


def config(hf: ConfigReader) -> DecoderConfig:
    """A `GPT2Config` of Hugging Face as a `DecoderConfig`."""
    # Upcasting changes the rounding of half precision only.
    hf.skip("reorder_and_upcast_attn", "n_ctx", "summary_type", "summary_use_proj")
    hf.skip("summary_activation", "summary_proj_to_labels", "summary_first_dropout")
    width, layers = hf.size("n_embd"), hf.size("n_layer", most=MAX_LAYERS)
    block = gpt_block(
        width,
        heads=hf.size("n_head"),
        intermediate_size=hf.size("n_inner", 4 * width),
        activation=hf.get("activation_function", str, "gelu_new"),
        norm=NormConfig(kind="layer", eps=hf.get("layer_norm_epsilon", float, 1e-5)),
        scale=None if hf.get("scale_attn_weights", bool, True) else 1.0,
    )
    scales = [block.attention.scale] * layers
    if hf.get("scale_attn_by_inverse_layer_idx", bool, False):
        scales = [scale / number for number, scale in enumerate(scales, 1)]
    attentions = [replace(block.attention, scale=scale) for scale in scales]
    return gpt_like(
        hf,
        model_type="gpt2",
        width=width,
        context_length=hf.size("n_positions"),
        positions=LearnedPositions(),
        blocks=tuple(replace(block, mixer=attention) for attention in attentions),
    )


def hf_config(config: DecoderConfig) -> dict[str, object]:
    """The `config.json` of a GPT-2 that computes what `config` says."""
    block, last = config.blocks[0], config.blocks[-1]
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_positions": config.context_length,
        "n_embd": config.hidden_size,
        "n_layer": len(config.blocks),
        "n_head": block.attention.num_heads,
        "n_inner": block.dense.intermediate_size,
        "activation_function": write_activation(block.dense.activation),
        "layer_norm_epsilon": block.norm.eps,
        "scale_attn_weights": block.attention.scale != 1.0,
        "scale_attn_by_inverse_layer_idx": last.attention.scale != block.attention.scale,
        "tie_word_embeddings": config.tied_head,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "pad_token_id": config.pad_token_id,
    }
