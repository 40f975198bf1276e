"""BART (Lewis et al. 2020): post-norm encoder-decoder with learned positions.

`bart_like` serves every family that differs from BART by values alone.
"""

import math

from ortolan.modeling.config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    FeedForwardConfig,
    LearnedPositions,
    NormConfig,
    Positions,
    TokenInput,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.activations import read_activation, write_activation
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Table, Target

BASE_MODEL_PREFIX = "model"

BASE, SEQ2SEQ = "BartModel", "BartForConditionalGeneration"

NORM = NormConfig(kind="layer", eps=1e-5)

POSITIONS = LearnedPositions(offset=2)

_LAYER = {
    **{f"self_attn.{part}_proj": "attention.qkv" for part in "qkv"},
    "self_attn.out_proj": "attention.out",
    "self_attn_layer_norm": "attention_norm",
    "fc1": "feed_forward.up",
    "fc2": "feed_forward.down",
    "final_layer_norm": "feed_forward_norm",
}

_CROSS = {
    "encoder_attn.q_proj": "cross_attention.q",
    "encoder_attn.k_proj": "cross_attention.kv",
    "encoder_attn.v_proj": "cross_attention.kv",
    "encoder_attn.out_proj": "cross_attention.out",
    "encoder_attn_layer_norm": "cross_attention_norm",
}

BODY: Table = {
    "model.shared.weight": Target("shared.weight"),
    "model.encoder.embed_tokens.weight": Target("encoder.embedding.weight"),
    "model.decoder.embed_tokens.weight": Target("decoder.embedding.weight"),
    "lm_head.weight": Target("decoder.head.weight"),
    "final_logits_bias": Target("decoder.head_bias", leading=True),
    **{
        f"model.{side}.layers.{{}}.{theirs}.{kind}": Target(f"{side}.blocks.{{}}.{ours}.{kind}")
        for side, layer in (("encoder", _LAYER), ("decoder", _LAYER | _CROSS))
        for theirs, ours in layer.items()
        for kind in ("weight", "bias")
    },
}

WEIGHTS: Table = {
    **BODY,
    **{
        f"model.{side}.{theirs}": Target(f"{side}.{ours}")
        for side in ("encoder", "decoder")
        for theirs, ours in {
            "embed_positions.weight": "position_embedding.weight",
            "layernorm_embedding.weight": "embedding_norm.weight",
            "layernorm_embedding.bias": "embedding_norm.bias",
        }.items()
    },
}


def config(hf: ConfigReader) -> EncoderDecoderConfig:
    """A `BartConfig` of Hugging Face as an `EncoderDecoderConfig`."""
    hf.skip("extra_pos_embeddings", "force_bos_token_to_be_generated")
    hf.refuse("static_position_embeddings")
    hf.require("normalize_embedding")
    return bart_like(
        hf,
        model_type="bart",
        base=BASE,
        seq2seq=SEQ2SEQ,
        positions=POSITIONS,
        embedding_norm=NORM,
        decoder_vocab_size=None,
    )


def bart_like(
    hf: ConfigReader,
    *,
    model_type: str,
    base: str,
    seq2seq: str,
    positions: Positions,
    embedding_norm: NormConfig | None,
    decoder_vocab_size: int | None,
) -> EncoderDecoderConfig:
    """A post-norm encoder-decoder; the embedding is shared unless the decoder's size is given.

    Raises:
        ConfigError: a switch of a variant that is unknown, or widths that do not fit.
    """
    architecture = hf.architecture(base, seq2seq)
    hf.skip("activation_dropout", "dropout", "classif_dropout", "classifier_dropout")
    hf.skip("encoder_layerdrop", "decoder_layerdrop", "init_std", "num_hidden_layers")
    for switch in ("add_bias_logits", "add_final_layer_norm", "normalize_before"):
        hf.refuse(switch)
    hf.require("tie_word_embeddings")
    hf.require("is_encoder_decoder")
    width, vocab_size = hf.size("d_model"), hf.size("vocab_size")
    context_length = hf.size("max_position_embeddings")
    scale = math.sqrt(width) if hf.get("scale_embedding", bool, False) else 1.0
    encoder = EncoderConfig(
        model_type=model_type,
        input=TokenInput(vocab_size=vocab_size),
        hidden_size=width,
        context_length=context_length,
        positions=positions,
        embedding_scale=scale,
        embedding_norm=embedding_norm,
        blocks=_blocks(hf, "encoder", width),
        final_norm=None,
    )
    decoder = DecoderConfig(
        model_type=model_type,
        vocab_size=decoder_vocab_size or vocab_size,
        hidden_size=width,
        context_length=context_length,
        positions=positions,
        embedding_scale=scale,
        embedding_norm=embedding_norm,
        blocks=_blocks(hf, "decoder", width),
        final_norm=None,
        tied_head=True,
        # transformers keeps it with the head, and takes zero where there was none.
        head_bias=architecture == seq2seq,
    )
    return EncoderDecoderConfig(
        model_type=model_type,
        encoder=encoder,
        decoder=decoder,
        shared_embedding=decoder_vocab_size is None,
        decoder_start_token_id=hf.get("decoder_start_token_id", int),
        bos_token_id=hf.get("bos_token_id", int, None),
        eos_token_ids=hf.token_ids("eos_token_id"),
        pad_token_id=hf.get("pad_token_id", int, None),
    )


def _blocks(hf: ConfigReader, side: str, width: int) -> tuple[BlockConfig, ...]:
    """The layers of one side, which attend to a source if they are the decoder's."""
    heads = hf.size(f"{side}_attention_heads")
    if width % heads:
        raise ConfigError(
            f"config.json: expected d_model divisible by {side}_attention_heads, got {width} and "
            f"{heads}. Correct one of them."
        )

    def attention(*, causal: bool) -> AttentionConfig:
        return AttentionConfig(
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=width // heads,
            scale=(width // heads) ** -0.5,
            qkv_bias=True,
            out_bias=True,
            causal=causal,
        )

    is_decoder = side == "decoder"
    block = BlockConfig(
        attention=attention(causal=is_decoder),
        cross_attention=attention(causal=False) if is_decoder else None,
        feed_forward=FeedForwardConfig(
            kind="mlp",
            intermediate_size=hf.size(f"{side}_ffn_dim"),
            activation=read_activation(hf.get("activation_function", str, "gelu")),
            bias=True,
        ),
        norm=NORM,
        placement="post",
    )
    return (block,) * hf.size(f"{side}_layers", most=MAX_LAYERS)


def hf_config(config: EncoderDecoderConfig) -> dict[str, object]:
    """The `config.json` of a BART that computes what `config` says."""
    return bart_like_hf_config(config, base=BASE, seq2seq=SEQ2SEQ)


def bart_like_hf_config(
    config: EncoderDecoderConfig, *, base: str, seq2seq: str
) -> dict[str, object]:
    """The keys that BART-like families share."""
    encoder, decoder = config.encoder.blocks, config.decoder.blocks
    eos = list(config.eos_token_ids) or None
    return {
        "architectures": [seq2seq if config.decoder.head_bias else base],
        "model_type": config.model_type,
        "is_encoder_decoder": True,
        "vocab_size": config.decoder.vocab_size,
        "d_model": config.decoder.hidden_size,
        "max_position_embeddings": config.decoder.context_length,
        "encoder_layers": len(encoder),
        "decoder_layers": len(decoder),
        "encoder_attention_heads": encoder[0].attention.num_heads,
        "decoder_attention_heads": decoder[0].attention.num_heads,
        "encoder_ffn_dim": encoder[0].dense.intermediate_size,
        "decoder_ffn_dim": decoder[0].dense.intermediate_size,
        "activation_function": write_activation(decoder[0].dense.activation),
        "scale_embedding": config.decoder.embedding_scale != 1.0,
        "decoder_start_token_id": config.decoder_start_token_id,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": eos[0] if eos and len(eos) == 1 else eos,
        "pad_token_id": config.pad_token_id,
    }
