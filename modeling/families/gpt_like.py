"""What the older decoder families share: one mlp of two matrices, and names of their own."""

from collections.abc import Mapping
from typing import Any

from ortolan.modeling.config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    FeedForwardConfig,
    NormConfig,
    Placement,
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
    context_length: int,
    positions: Positions,
    blocks: tuple[BlockConfig, ...],
    tied: bool = True,
    **fields: Any,
) -> DecoderConfig:
    """A decoder whose last norm is like the others, with none after a layer that ends in one.

    Args:
        hf: the published config, for the vocabulary, tokens and tied embeddings.
        model_type: of the family.
        width: of the stream.
        context_length: tokens that fit.
        positions: their kind.
        blocks: the layers.
        tied: whether the head is the embedding where the config does not say so.
        fields: others of the decoder.
    """
    last = blocks[-1]
    return DecoderConfig(
        model_type=model_type,
        vocab_size=hf.size("vocab_size"),
        hidden_size=width,
        context_length=context_length,
        positions=positions,
        blocks=blocks,
        final_norm=None if last.placement == "post" else last.norm,
        tied_head=hf.get("tie_word_embeddings", bool, tied),
        bos_token_id=hf.get("bos_token_id", int, None),
        eos_token_ids=hf.token_ids("eos_token_id"),
        pad_token_id=hf.get("pad_token_id", int, None),
        **fields,
    )


def gpt_block(
    width: int,
    *,
    heads: int,
    intermediate_size: int,
    activation: str,
    norm: NormConfig,
    kv_heads: int | None = None,
    scale: float | None = None,
    window: int | None = None,
    query_key_norm: NormConfig | None = None,
    qkv_bias: bool = True,
    out_bias: bool = True,
    mlp_bias: bool = True,
    placement: Placement = "pre",
) -> BlockConfig:
    """A layer whose heads share the width; `activation` is its published name.

    Raises:
        ConfigError: the heads do not share the width evenly.
    """
    if width % heads:
        raise ConfigError(
            f"config.json: expected a width that the heads share evenly, got {width} and {heads}. "
            "Correct one of them."
        )
    return BlockConfig(
        mixer=AttentionConfig(
            num_heads=heads,
            num_kv_heads=kv_heads or heads,
            head_dim=width // heads,
            scale=(width // heads) ** -0.5 if scale is None else scale,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
            sliding_window=window,
            query_key_norm=query_key_norm,
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
