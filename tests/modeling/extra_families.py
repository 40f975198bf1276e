"""Families that Ortolan does not ship, added as CONTRIBUTING.md describes.

No shipped family of decoders combines norms after the residual, sinusoidal positions and a scaled
embedding.
"""

import math

from ortolan.modeling.config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    FeedForwardConfig,
    NormConfig,
    SinusoidalPositions,
)
from ortolan.modeling.families.activations import read_activation, write_activation
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.weights import Table, Target

# The decoder of Marian (Junczys-Dowmunt et al. 2018) without an encoder.

MARIAN_WEIGHTS: Table = {
    "model.decoder.embed_tokens.weight": Target("embedding.weight"),
    "model.decoder.embed_positions.weight": None,
    **{
        f"model.decoder.layers.{{}}.self_attn.{part}_proj.{kind}": Target(
            f"blocks.{{}}.attention.qkv.{kind}"
        )
        for kind in ("weight", "bias")
        for part in "qkv"
    },
    **{
        f"model.decoder.layers.{{}}.{theirs}.{kind}": Target(f"blocks.{{}}.{ours}.{kind}")
        for kind in ("weight", "bias")
        for theirs, ours in {
            "self_attn.out_proj": "attention.out",
            "self_attn_layer_norm": "attention_norm",
            "fc1": "feed_forward.up",
            "fc2": "feed_forward.down",
            "final_layer_norm": "feed_forward_norm",
        }.items()
    },
    **{
        f"model.decoder.layers.{{}}.{cross}.{kind}": None
        for kind in ("weight", "bias")
        for cross in (
            *(f"encoder_attn.{part}_proj" for part in ("q", "k", "v", "out")),
            "encoder_attn_layer_norm",
        )
    },
    "lm_head.weight": Target("head.weight"),
}


def marian_config(hf: ConfigReader) -> DecoderConfig:
    hf.skip("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "init_std")
    hf.skip("encoder_layerdrop", "decoder_layerdrop", "dropout", "activation_dropout")
    hf.skip("share_encoder_decoder_embeddings", "decoder_vocab_size")
    width, heads = hf.size("d_model"), hf.size("decoder_attention_heads")
    block = BlockConfig(
        mixer=AttentionConfig(
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=width // heads,
            scale=(width // heads) ** -0.5,
            qkv_bias=True,
            out_bias=True,
        ),
        feed_forward=FeedForwardConfig(
            kind="mlp",
            intermediate_size=hf.size("decoder_ffn_dim"),
            activation=read_activation(hf.get("activation_function", str)),
            bias=True,
        ),
        norm=NormConfig(kind="layer", eps=1e-5),
        placement="post",
    )
    return DecoderConfig(
        model_type="marian",
        vocab_size=hf.size("vocab_size"),
        hidden_size=width,
        context_length=hf.size("max_position_embeddings"),
        positions=SinusoidalPositions(layout="halves"),
        blocks=(block,) * hf.size("decoder_layers"),
        final_norm=None,
        tied_head=hf.get("tie_word_embeddings", bool, True),
        embedding_scale=math.sqrt(width) if hf.get("scale_embedding", bool, False) else 1.0,
        bos_token_id=hf.get("bos_token_id", int, None),
        eos_token_ids=hf.token_ids("eos_token_id"),
        pad_token_id=hf.get("pad_token_id", int, None),
    )


def marian_hf_config(config: DecoderConfig) -> dict[str, object]:
    block = config.blocks[0]
    return {
        "architectures": ["MarianForCausalLM"],
        "model_type": "marian",
        "is_decoder": True,
        "is_encoder_decoder": False,
        "vocab_size": config.vocab_size,
        "d_model": config.hidden_size,
        "decoder_layers": len(config.blocks),
        "decoder_attention_heads": block.attention.num_heads,
        "decoder_ffn_dim": block.dense.intermediate_size,
        "max_position_embeddings": config.context_length,
        "activation_function": write_activation(block.dense.activation),
        "scale_embedding": config.embedding_scale != 1.0,
        "tie_word_embeddings": config.tied_head,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "pad_token_id": config.pad_token_id,
    }


EXTRA_FAMILIES: dict[str, Family[DecoderConfig]] = {
    "marian": Family(config=marian_config, weights=MARIAN_WEIGHTS, hf_config=marian_hf_config),
}
