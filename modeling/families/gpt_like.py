"""What the older decoder families share: one mlp of two matrices, and names of their own."""

from collections.abc import Mapping
from typing import Any

from ortolan.modeling.config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    FeedForwardConfig,
    NormConfig,
    Positions,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.weights import Rows, Target

QKV, OUT = "attention.qkv", "attention.out"
UP, DOWN = "feed_forward.up", "feed_forward.down"
NORM_1, NORM_2 = "attention_norm", "feed_forward_norm"


def gpt_like(
    hf: ConfigReader,
    *,
    model_type: str,
    width: int,
    heads: int,
    layers: int,
    context_length: int,
    positions: Positions,
    intermediate_size: int,
    activation: str,
    norm: NormConfig,
    kv_heads: int | None = None,
    scale: float | None = None,
    window: int | None = None,
    qkv_bias: bool = True,
    out_bias: bool = True,
    mlp_bias: bool = True,
    tied: bool = True,
    **fields: Any,
) -> DecoderConfig:
    """A decoder of equal layers.

    Args:
        hf: the published config, for the vocabulary, tokens and tied embeddings.
        model_type: of the family.
        width: of the stream; heads share it.
        heads: query heads.
        layers: how many.
        context_length: tokens that fit.
        positions: their kind.
        intermediate_size: of the mlp.
        activation: its published name.
        norm: every norm.
        kv_heads: as many as query heads by default.
        scale: of the scores; one over the root of a head's width by default.
        window: tokens that each attends to; all before it by default.
        qkv_bias: queries, keys and values have one.
        out_bias: the readout has one.
        mlp_bias: the mlp has them.
        tied: whether the head is the embedding where the config does not say so.
        fields: others of the blocks, such as `placement`, or of the decoder.

    Raises:
        ConfigError: the heads do not share the width evenly.
    """
    if width % heads:
        raise ConfigError(
            f"config.json: expected a width that the heads share evenly, got {width} and {heads}. "
            "Correct one of them."
        )
    placement = fields.pop("placement", "pre")
    block = BlockConfig(
        attention=AttentionConfig(
            num_heads=heads,
            num_kv_heads=kv_heads or heads,
            head_dim=width // heads,
            scale=(width // heads) ** -0.5 if scale is None else scale,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
            sliding_window=window,
        ),
        feed_forward=FeedForwardConfig(
            kind="mlp",
            intermediate_size=intermediate_size,
            activation=read_activation(activation),
            bias=mlp_bias,
        ),
        norm=norm,
        placement=placement,
    )
    return DecoderConfig(
        model_type=model_type,
        vocab_size=hf.size("vocab_size"),
        hidden_size=width,
        context_length=context_length,
        positions=positions,
        blocks=(block,) * layers,
        final_norm=None if placement == "post" else norm,
        tied_head=hf.get("tie_word_embeddings", bool, tied),
        bos_token_id=hf.get("bos_token_id", int, None),
        eos_token_ids=hf.token_ids("eos_token_id"),
        pad_token_id=hf.get("pad_token_id", int, None),
        **fields,
    )


def named(
    theirs: str, ours: str, modules: Mapping[str, str], *, rows: Rows | None = None
) -> dict[str, Target]:
    """Targets of the weights and biases of modules, each below its prefix."""
    return {
        f"{theirs}{their}.{kind}": Target(f"{ours}{our}.{kind}", rows=rows)
        for kind in ("weight", "bias")
        for their, our in modules.items()
    }


def grouped(heads: int, kv_heads: int) -> Rows:
    """Rows of which each key and value head has its queries, then its key, then its value."""
    queries = heads // kv_heads
    ends = (queries, queries + 1, queries + 2)
    return Rows(kv_heads, queries + 2, -1, tuple(zip((0, *ends), ends, strict=False)))
