"""GPT-2 (Radford et al. 2019): pre-norm, learned positions, layer norm, one mlp."""

from ortolan.modeling.config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    FeedForwardConfig,
    LearnedPositions,
    NormConfig,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.activations import read_activation, write_activation
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
    # Causal masks that old versions of transformers saved.
    "transformer.h.{}.attn.bias": None,
    "transformer.h.{}.attn.masked_bias": None,
}


def config(hf: ConfigReader) -> DecoderConfig:
    """A `GPT2Config` of Hugging Face as a `DecoderConfig`."""
    hf.refuse("scale_attn_by_inverse_layer_idx")
    # Upcasting changes the rounding of half precision only.
    hf.skip("reorder_and_upcast_attn", "n_ctx", "summary_type", "summary_use_proj")
    hf.skip("summary_activation", "summary_proj_to_labels", "summary_first_dropout")
    width, heads = hf.size("n_embd"), hf.size("n_head")
    if width % heads:
        raise ConfigError(
            f"config.json: expected n_embd divisible by n_head, got {width} and {heads}. "
            "Correct one of them."
        )
    head_dim = width // heads
    norm = NormConfig(kind="layer", eps=hf.get("layer_norm_epsilon", float, 1e-5))
    block = BlockConfig(
        attention=AttentionConfig(
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=head_dim,
            scale=head_dim**-0.5 if hf.get("scale_attn_weights", bool, True) else 1.0,
            qkv_bias=True,
            out_bias=True,
        ),
        feed_forward=FeedForwardConfig(
            kind="mlp",
            intermediate_size=hf.size("n_inner", 4 * width),
            activation=read_activation(hf.get("activation_function", str, "gelu_new")),
            bias=True,
        ),
        norm=norm,
    )
    return DecoderConfig(
        model_type="gpt2",
        vocab_size=hf.size("vocab_size"),
        hidden_size=width,
        context_length=hf.size("n_positions"),
        positions=LearnedPositions(),
        blocks=(block,) * hf.size("n_layer", most=MAX_LAYERS),
        final_norm=norm,
        tied_head=hf.get("tie_word_embeddings", bool, True),
        bos_token_id=hf.get("bos_token_id", int, None),
        eos_token_ids=hf.token_ids("eos_token_id"),
        pad_token_id=hf.get("pad_token_id", int, None),
    )


def hf_config(config: DecoderConfig) -> dict[str, object]:
    """The `config.json` of a GPT-2 that computes what `config` says."""
    block = config.blocks[0]
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
        "tie_word_embeddings": config.tied_head,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "pad_token_id": config.pad_token_id,
    }
