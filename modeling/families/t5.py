"""T5 and its gated variant (Raffel et al. 2020; Shazeer 2020): relative positions, RMS norms."""

from ortolan.modeling.config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    FeedForwardConfig,
    NormConfig,
    RelativeBiasPositions,
    TokenInput,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.activations import read_activation, write_activation
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Target

BASE_MODEL_PREFIX = "transformer"

BASE, SEQ2SEQ = "T5Model", "T5ForConditionalGeneration"

CONTEXT_LENGTH = 512
"""What T5 was trained with. Its positions reach further, and its config need not say."""

_ATTENTION = {"q": "qkv", "k": "qkv", "v": "qkv", "o": "out"}

_CROSS = {"q": "q", "k": "kv", "v": "kv", "o": "out"}


def WEIGHTS(config: EncoderDecoderConfig) -> dict[str, Target | None]:  # noqa: N802 - the table
    """The table: a gated layer's `wi_1` is what another layer's `wi` is."""
    return {
        "shared.weight": Target("shared.weight"),
        "encoder.embed_tokens.weight": Target("encoder.embedding.weight"),
        "decoder.embed_tokens.weight": Target("decoder.embedding.weight"),
        "lm_head.weight": Target("decoder.head.weight"),
        **_side("encoder", config.encoder.blocks[0]),
        **_side("decoder", config.decoder.blocks[0]),
        # Old versions of transformers saved one that nothing read.
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": None,
    }


def _side(side: str, block: BlockConfig) -> dict[str, Target | None]:
    """The rows of the encoder, or of the decoder."""
    theirs, ours = f"{side}.block.{{}}.layer", f"{side}.blocks.{{}}"
    last = 1 if block.cross_attention is None else 2
    gated = {"wi_0": "gate", "wi_1": "up", "wo": "down"}
    dense = gated if block.dense.kind == "gated" else {"wi": "up", "wo": "down"}
    modules = {
        f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias": f"{side}.position_bias",
        f"{side}.final_layer_norm": f"{side}.final_norm",
        f"{theirs}.0.layer_norm": f"{ours}.attention_norm",
        **{
            f"{theirs}.0.SelfAttention.{name}": f"{ours}.attention.{part}"
            for name, part in _ATTENTION.items()
        },
        f"{theirs}.{last}.layer_norm": f"{ours}.feed_forward_norm",
        **{
            f"{theirs}.{last}.DenseReluDense.{name}": f"{ours}.feed_forward.{part}"
            for name, part in dense.items()
        },
    }
    if block.cross_attention is not None:
        modules[f"{theirs}.1.layer_norm"] = f"{ours}.cross_attention_norm"
        for name, part in _CROSS.items():
            modules[f"{theirs}.1.EncDecAttention.{name}"] = f"{ours}.cross_attention.{part}"
    return {f"{name}.weight": Target(f"{part}.weight") for name, part in modules.items()}


def config(hf: ConfigReader) -> EncoderDecoderConfig:
    """A `T5Config` of Hugging Face as an `EncoderDecoderConfig`."""
    hf.architecture(BASE, SEQ2SEQ)
    hf.skip("dropout_rate", "classifier_dropout", "initializer_factor")
    # What follows from feed_forward_proj, which new versions write too.
    hf.skip("dense_act_fn", "is_gated_act")
    hf.require("is_encoder_decoder")
    width, vocab_size = hf.size("d_model"), hf.size("vocab_size")
    layers = hf.size("num_layers", most=MAX_LAYERS)
    encoder_block, decoder_block = _blocks(hf)
    tied = hf.get("tie_word_embeddings", bool, True)
    scaled = hf.get("scale_decoder_outputs", bool, tied)
    pad = hf.get("pad_token_id", int, None)
    context_length = hf.size("n_positions", CONTEXT_LENGTH)
    positions = RelativeBiasPositions(
        buckets=hf.size("relative_attention_num_buckets", 32),
        max_distance=hf.size("relative_attention_max_distance", 128),
    )
    encoder = EncoderConfig(
        model_type="t5",
        input=TokenInput(vocab_size=vocab_size),
        hidden_size=width,
        context_length=context_length,
        positions=positions,
        blocks=(encoder_block,) * layers,
        final_norm=encoder_block.norm,
    )
    decoder = DecoderConfig(
        model_type="t5",
        vocab_size=vocab_size,
        hidden_size=width,
        context_length=context_length,
        positions=positions,
        blocks=(decoder_block,) * hf.size("num_decoder_layers", layers, most=MAX_LAYERS),
        final_norm=decoder_block.norm,
        tied_head=tied,
        head_scale=width**-0.5 if scaled else 1.0,
    )
    return EncoderDecoderConfig(
        model_type="t5",
        encoder=encoder,
        decoder=decoder,
        shared_embedding=True,
        decoder_start_token_id=hf.get("decoder_start_token_id", int, pad or 0),
        bos_token_id=hf.get("bos_token_id", int, None),
        eos_token_ids=hf.token_ids("eos_token_id"),
        pad_token_id=pad,
    )


def _blocks(hf: ConfigReader) -> tuple[BlockConfig, BlockConfig]:
    """A layer of the encoder and one of the decoder."""

    def attention(*, causal: bool) -> AttentionConfig:
        heads = hf.size("num_heads")
        # The weights are initialised so that the scores need no scale.
        return AttentionConfig(
            num_heads=heads, num_kv_heads=heads, head_dim=hf.size("d_kv"), scale=1.0, causal=causal
        )

    projection = hf.get("feed_forward_proj", str, "relu")
    gate, _, activation = projection.rpartition("-")
    if gate not in ("", "gated"):
        raise ConfigError(
            f"config.json: expected feed_forward_proj to be an activation, or gated- and one, "
            f"got {projection!r:.40}. This checkpoint cannot be loaded faithfully."
        )
    # The published gated models have the approximation, whatever this name says elsewhere.
    activation = "gelu_new" if projection == "gated-gelu" else activation
    feed_forward = FeedForwardConfig(
        kind="gated" if gate else "mlp",
        intermediate_size=hf.size("d_ff"),
        activation=read_activation(activation),
    )
    norm = NormConfig(kind="rms", eps=hf.get("layer_norm_epsilon", float, 1e-6))
    return (
        BlockConfig(attention=attention(causal=False), feed_forward=feed_forward, norm=norm),
        BlockConfig(
            attention=attention(causal=True),
            cross_attention=attention(causal=False),
            feed_forward=feed_forward,
            norm=norm,
        ),
    )


def hf_config(config: EncoderDecoderConfig) -> dict[str, object]:
    """The `config.json` of a T5 that computes what `config` says.

    Raises:
        ConfigError: positions that the format does not have.
    """
    decoder, first = config.decoder, config.decoder.blocks[0]
    if not isinstance(decoder.positions, RelativeBiasPositions):
        raise ConfigError(
            f"{config.model_type}: expected relative_bias positions, got "
            f"{type(decoder.positions).__name__}. Save it as another family."
        )
    eos = list(config.eos_token_ids) or None
    activation = write_activation(first.dense.activation)
    return {
        "architectures": [SEQ2SEQ],
        "model_type": "t5",
        "is_encoder_decoder": True,
        "vocab_size": decoder.vocab_size,
        "d_model": decoder.hidden_size,
        "d_kv": first.attention.head_dim,
        "d_ff": first.dense.intermediate_size,
        "num_layers": len(config.encoder.blocks),
        "num_decoder_layers": len(decoder.blocks),
        "num_heads": first.attention.num_heads,
        "n_positions": decoder.context_length,
        "relative_attention_num_buckets": decoder.positions.buckets,
        "relative_attention_max_distance": decoder.positions.max_distance,
        "feed_forward_proj": _write_projection(first.dense.kind, activation),
        "layer_norm_epsilon": first.norm.eps,
        "tie_word_embeddings": decoder.tied_head,
        "scale_decoder_outputs": decoder.head_scale != 1.0,
        "decoder_start_token_id": config.decoder_start_token_id,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": eos[0] if eos and len(eos) == 1 else eos,
        "pad_token_id": config.pad_token_id,
    }


def _write_projection(kind: str, activation: str) -> str:
    if kind == "mlp":
        return activation
    return "gated-gelu" if activation == "gelu_new" else f"gated-{activation}"
