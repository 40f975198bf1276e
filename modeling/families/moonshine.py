"""Moonshine (Jeffries et al. 2024): an encoder of waves, and a decoder of text."""

from typing import Any

from ortolan.modeling.config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    FeedForwardConfig,
    NormConfig,
    RotaryPositions,
    WaveInput,
    WaveLayer,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.rope import read_rotary
from ortolan.modeling.families.tables import (
    DOWN,
    HALVES,
    NORM_1,
    NORM_2,
    OUT,
    QKV,
    UP,
    linear,
)
from ortolan.modeling.weights import Entry, HeadPadding, Target

CONTEXT = 1250
"""Most vectors of a wave: 30 seconds. The positions reach any length."""

KERNEL_WIDTH = 16
"""Attention kernels rotate heads of multiples of this width. Without a kernel, a graph would
compute the number of vectors, by a division that bundles do not have."""

NORM = NormConfig(kind="layer", eps=1e-5, bias=False)


def _moonshine(hf: ConfigReader) -> EncoderDecoderConfig:
    hf.architecture("MoonshineForConditionalGeneration")
    hf.require("tie_word_embeddings")
    hf.require("is_encoder_decoder")
    # Zeros around the channels of a head, which change nothing; our heads have their own.
    hf.skip("pad_head_dim_to_multiple_of")
    width = hf.size("hidden_size", 288)
    rotary = _rotary(hf, width)
    stack: dict[str, Any] = {
        "model_type": hf.get("model_type", str),
        "hidden_size": width,
        "positions": rotary,
        "final_norm": NORM,
    }
    encoder = EncoderConfig(
        **stack,
        input=WaveInput(layers=_convolutions(width), projection=False),
        context_length=CONTEXT,
        blocks=_blocks(hf, "encoder", width),
    )
    decoder = DecoderConfig(
        **stack,
        vocab_size=hf.size("vocab_size", 32_768),
        context_length=hf.size("max_position_embeddings", 512),
        blocks=_blocks(hf, "decoder", width),
        tied_head=True,
    )
    return EncoderDecoderConfig(
        **hf.model_fields(),
        encoder=encoder,
        decoder=decoder,
        shared_embedding=False,
        decoder_start_token_id=hf.get("decoder_start_token_id", int, 1),
    )


def _convolutions(width: int) -> tuple[WaveLayer, ...]:
    return (
        WaveLayer(
            channels=width, kernel=127, stride=64, activation="tanh", norm="all", norm_last=True
        ),
        WaveLayer(channels=2 * width, kernel=7, stride=3, activation="gelu", bias=True),
        WaveLayer(channels=width, kernel=3, stride=2, activation="gelu", bias=True),
    )


def _rotary(hf: ConfigReader, width: int) -> RotaryPositions:
    """The positions of both sides."""
    head_dim = width // _heads(hf, width)
    positions = read_rotary(
        hf, head_dim=head_dim, context_length=CONTEXT, fraction=0.9, interleaved=True
    )
    if positions.scaling is not None or positions.dim % KERNEL_WIDTH or not positions.dim:
        raise ConfigError(
            f"{hf.name}: the rotated channels of a head must be a multiple of {KERNEL_WIDTH}, "
            f"without a scaling (got {positions.dim} of {head_dim}). This checkpoint cannot be "
            "exported."
        )
    return positions


def _heads(hf: ConfigReader, width: int) -> int:
    """The number of heads of both sides."""
    sides = ("encoder", "decoder")
    counts = [hf.size(f"{side}_num_attention_heads", 8) for side in sides]
    counts += [
        hf.size(f"{side}_num_key_value_heads", count)
        for side, count in zip(sides, counts, strict=True)
    ]
    if len(set(counts)) > 1 or width % counts[0]:
        raise ConfigError(
            f"{hf.name}: encoder and decoder must have the same number of heads and of key and "
            f"value heads, which divides hidden_size (got {counts} and {width}). Correct them."
        )
    return counts[0]


def _blocks(hf: ConfigReader, side: str, width: int) -> tuple[BlockConfig, ...]:
    """The layers of one side; those of the decoder attend to the source."""
    heads = _heads(hf, width)
    has_bias = hf.get("attention_bias", bool, False)

    def attention(*, causal: bool) -> AttentionConfig:
        return AttentionConfig(
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=_padded(width // heads),
            scale=(width // heads) ** -0.5,
            qkv_bias=has_bias,
            causal=causal,
        )

    is_decoder = side == "decoder"
    default = "silu" if is_decoder else "gelu"
    block = BlockConfig(
        mixer=attention(causal=is_decoder),
        cross_attention=attention(causal=False) if is_decoder else None,
        feed_forward=FeedForwardConfig(
            kind="gated" if is_decoder else "mlp",
            intermediate_size=hf.size("intermediate_size", 1152),
            activation=read_activation(hf.get(f"{side}_hidden_act", str, default)),
            bias=True,
        ),
        norm=NORM,
        placement="pre",
    )
    return (block,) * hf.size(f"{side}_num_hidden_layers", 6, most=MAX_LAYERS)


def _padded(head_dim: int) -> int:
    """The width of our heads."""
    return -(-head_dim // KERNEL_WIDTH) * KERNEL_WIDTH


def _weights(config: EncoderDecoderConfig) -> dict[str, Entry]:
    """The table of a model, whose heads are wider than in the checkpoint."""
    attention = config.decoder.attentions[0]
    published, ours = config.decoder.hidden_size // attention.num_heads, attention.head_dim
    from_stream, to_stream = (
        {f"{part}_proj": HeadPadding(published, ours, 0) for part in "qkv"},
        {"o_proj": HeadPadding(published, ours, 1)},
    )
    return {
        "proj_out.weight": Target("decoder.head.weight"),
        "model.decoder.embed_tokens.weight": Target("decoder.embedding.weight"),
        **linear(_MODULES),
        **{
            f"model.{side}.layers.{{}}.{theirs}.{kind}": Target(f"{side}.blocks.{{}}.{name}.{kind}")
            for side, modules in _LAYERS.items()
            for theirs, name in modules.items()
            for kind in ("weight", "bias")
        },
        **{
            f"model.decoder.layers.{{}}.mlp.fc1.{kind}": tuple(
                Target(f"decoder.blocks.{{}}.feed_forward.{part}.{kind}", rows=rows)
                for part, rows in zip(("up", "gate"), HALVES, strict=True)
            )
            for kind in ("weight", "bias")
        },
        **{
            f"model.{side}.layers.{{}}.{module}.{theirs}.{kind}": Target(
                f"{side}.blocks.{{}}.{names[theirs]}.{kind}", heads=padding
            )
            for side, module, names in _ATTENTIONS
            for theirs, padding in (from_stream | to_stream).items()
            for kind in ("weight", "bias")
        },
    }


_MODULES = {
    "model.encoder.groupnorm": "encoder.embedding.layers.0.norm",
    **{
        f"model.encoder.conv{number + 1}": f"encoder.embedding.layers.{number}.conv"
        for number in range(3)
    },
    "model.encoder.layer_norm": "encoder.final_norm",
    "model.decoder.norm": "decoder.final_norm",
}
"""Modules outside of the layers."""

_LAYERS = {
    "encoder": {
        "input_layernorm": NORM_1,
        "post_attention_layernorm": NORM_2,
        "mlp.fc1": UP,
        "mlp.fc2": DOWN,
    },
    "decoder": {
        "input_layernorm": NORM_1,
        "post_attention_layernorm": "cross_attention_norm",
        "final_layernorm": NORM_2,
        "mlp.fc2": DOWN,
    },
}
"""Modules of a layer, without attention and the gated part."""

_SELF = {"q_proj": QKV, "k_proj": QKV, "v_proj": QKV, "o_proj": OUT}

_ATTENTIONS = (
    ("encoder", "self_attn", _SELF),
    ("decoder", "self_attn", _SELF),
    (
        "decoder",
        "encoder_attn",
        {
            "q_proj": "cross_attention.q",
            "k_proj": "cross_attention.kv",
            "v_proj": "cross_attention.kv",
            "o_proj": "cross_attention.out",
        },
    ),
)
"""Attention of each side, and our names of its projections."""

FAMILIES: dict[str, Family[EncoderDecoderConfig]] = {
    "moonshine": Family(config=_moonshine, weights=_weights)
}
