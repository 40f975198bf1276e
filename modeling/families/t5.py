"""T5 (Raffel et al. 2020), mT5 (Xue et al. 2021) and umT5 (Chung et al. 2023).

Encoder-decoders with biases of distances and RMS norms; later ones have a gated MLP (Shazeer 2020).
"""

from dataclasses import dataclass, replace

from ortolan.modeling.config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    FeedForwardConfig,
    NormConfig,
    Positions,
    RelativeBiasPositions,
    TokenInput,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Entry, Target

CONTEXT_LENGTH = 512
"""Training length of T5, for configs that do not say. Its positions reach further."""

SEQ2SEQ, ENCODER = "ForConditionalGeneration", "EncoderModel"

_ATTENTION = {"q": "qkv", "k": "qkv", "v": "qkv", "o": "out"}

_CROSS = {"q": "q", "k": "kv", "v": "kv", "o": "out"}


def _weights(config: EncoderConfig | EncoderDecoderConfig) -> dict[str, Entry]:
    """Published weight names to ours: `wi_1` of a gated layer is `wi` of another."""
    if isinstance(config, EncoderConfig):
        side = _side("encoder", config.blocks[0], config.positions)
        ours = {name: Target(target.name.removeprefix("encoder.")) for name, target in side.items()}
        # The embedding has two names, and a full model has a decoder.
        others: dict[str, Entry] = {
            "encoder.embed_tokens.weight": "shared.weight",
            "decoder.*": None,
        }
        return {"shared.weight": Target("embedding.weight"), **ours, **others}
    return {
        "shared.weight": Target("shared.weight"),
        "encoder.embed_tokens.weight": Target("encoder.embedding.weight"),
        "decoder.embed_tokens.weight": Target("decoder.embedding.weight"),
        "lm_head.weight": Target("decoder.head.weight"),
        **_side("encoder", config.encoder.blocks[0], config.encoder.positions),
        **_side("decoder", config.decoder.blocks[0], config.decoder.positions),
        # Old versions of transformers saved a table that nothing read.
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": None,
    }


def _side(side: str, block: BlockConfig, positions: Positions) -> dict[str, Target]:
    """The rows of the encoder, or of the decoder."""
    theirs, ours = f"{side}.block.{{}}.layer", f"{side}.blocks.{{}}"
    last = 1 if block.cross_attention is None else 2
    gated = {"wi_0": "gate", "wi_1": "up", "wo": "down"}
    dense = gated if block.dense.kind == "gated" else {"wi": "up", "wo": "down"}
    layer, bias = f"{side}.block.0.layer", f"{side}.position_bias"
    if isinstance(positions, RelativeBiasPositions) and positions.each_layer:
        layer, bias = theirs, f"{ours}.attention.relative_bias"
    modules = {
        f"{layer}.0.SelfAttention.relative_attention_bias": bias,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class T5Format:
    """A checkpoint format that differs from T5's by values alone.

    Attributes:
        classes: the prefix of the names of its model classes.
        feed_forward: default of `feed_forward_proj`.
        scales_logits: the stream is scaled before a tied head.
        each_layer: every layer has its own biases of distances.
    """

    classes: str
    feed_forward: str = "gated-gelu"
    scales_logits: bool = True
    each_layer: bool = False

    @property
    def family(self) -> Family[EncoderConfig | EncoderDecoderConfig]:
        """The format as a family."""
        return Family(
            config=self.read,
            weights=_weights,
            base_model_prefix="transformer",
        )

    def read(self, hf: ConfigReader) -> EncoderConfig | EncoderDecoderConfig:
        """A published config as an `EncoderDecoderConfig`, or an `EncoderConfig` of its encoder."""
        base, seq2seq, encoder_alone = (
            f"{self.classes}{kind}" for kind in ("Model", SEQ2SEQ, ENCODER)
        )
        architecture = hf.architecture(base, seq2seq, encoder_alone)
        hf.skip("dropout_rate", "classifier_dropout", "initializer_factor")
        encoder_block, decoder_block = _blocks(hf, self.feed_forward)
        layers = hf.size("num_layers", most=MAX_LAYERS)
        encoder = self._encoder(hf, (encoder_block,) * layers)
        tied = hf.get("tie_word_embeddings", bool, True)
        scaled = hf.get("scale_decoder_outputs", bool, tied) and self.scales_logits
        depth = hf.size("num_decoder_layers", layers, most=MAX_LAYERS)
        if architecture == encoder_alone:
            hf.skip("is_encoder_decoder")
            return encoder
        hf.require("is_encoder_decoder")
        decoder = DecoderConfig(
            model_type=encoder.model_type,
            vocab_size=hf.size("vocab_size"),
            hidden_size=encoder.hidden_size,
            context_length=encoder.context_length,
            positions=encoder.positions,
            blocks=(decoder_block,) * depth,
            final_norm=decoder_block.norm,
            tied_head=tied,
            head_scale=encoder.hidden_size**-0.5 if scaled else 1.0,
        )
        pad = encoder.pad_token_id
        return EncoderDecoderConfig(
            model_type=encoder.model_type,
            encoder=replace(encoder, bos_token_id=None, eos_token_ids=(), pad_token_id=None),
            decoder=decoder,
            shared_embedding=True,
            decoder_start_token_id=hf.get("decoder_start_token_id", int, pad or 0),
            bos_token_id=encoder.bos_token_id,
            eos_token_ids=encoder.eos_token_ids,
            pad_token_id=pad,
        )

    def _encoder(self, hf: ConfigReader, blocks: tuple[BlockConfig, ...]) -> EncoderConfig:
        """The encoder alone, with all tokens of the model."""
        return EncoderConfig(
            **hf.model_fields(),
            input=TokenInput(vocab_size=hf.size("vocab_size")),
            hidden_size=hf.size("d_model"),
            context_length=hf.size("n_positions", CONTEXT_LENGTH),
            positions=RelativeBiasPositions(
                buckets=hf.size("relative_attention_num_buckets", 32),
                max_distance=hf.size("relative_attention_max_distance", 128),
                each_layer=self.each_layer,
            ),
            blocks=blocks,
            final_norm=blocks[0].norm,
        )


def _blocks(hf: ConfigReader, default: str) -> tuple[BlockConfig, BlockConfig]:
    """A layer of the encoder and one of the decoder."""

    def attention(*, causal: bool) -> AttentionConfig:
        heads = hf.size("num_heads")
        # Weights are initialised so that the scores need no scale.
        return AttentionConfig(
            num_heads=heads, num_kv_heads=heads, head_dim=hf.size("d_kv"), scale=1.0, causal=causal
        )

    projection = hf.get("feed_forward_proj", str, default)
    gate, _, activation = projection.rpartition("-")
    if gate not in ("", "gated"):
        raise ConfigError(
            f"{hf.name}: feed_forward_proj must be an activation, alone or after gated- (got "
            f"{projection!r:.40}). This checkpoint cannot be loaded faithfully."
        )
    # Published gated models use the approximation, whatever this name means elsewhere.
    activation = "gelu_new" if projection == "gated-gelu" else activation
    # New versions also write what follows from feed_forward_proj.
    is_gated = hf.get("is_gated_act", bool, bool(gate))
    feed_forward = FeedForwardConfig(
        kind="gated" if is_gated else "mlp",
        intermediate_size=hf.size("d_ff"),
        activation=read_activation(hf.get("dense_act_fn", str, activation)),
    )
    norm = NormConfig(kind="rms", eps=hf.get("layer_norm_epsilon", float, 1e-6))
    return (
        BlockConfig(mixer=attention(causal=False), feed_forward=feed_forward, norm=norm),
        BlockConfig(
            mixer=attention(causal=True),
            cross_attention=attention(causal=False),
            feed_forward=feed_forward,
            norm=norm,
        ),
    )


FAMILIES = {
    "t5": T5Format(classes="T5", feed_forward="relu").family,
    "mt5": T5Format(classes="MT5", scales_logits=False).family,
    "umt5": T5Format(classes="UMT5", each_layer=True).family,
}
