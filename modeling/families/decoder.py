"""Reads the config of a decoder, for every family that differs from Llama by names and values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ortolan.modeling.config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    FeedForwardConfig,
    NoPositions,
    NormConfig,
    Placement,
    Positions,
    RotaryPositions,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.norms import RMS
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.rope import read_rotary

Flag = bool | str | tuple[str, bool]
"""A switch: its value, the key that holds it (false if absent), or the key and its default."""

Windows = Sequence[int | None] | Callable[[ConfigReader], Sequence[int | None]] | None
"""The sliding window of each layer, or a function that reads them; None if no layer has one."""

Rotary = RotaryPositions | NoPositions | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The config keys of a decoder's sizes.

    Where a key is None, the family's value is fixed: every head has a key and a value, heads share
    the width evenly.
    """

    width: str = "hidden_size"
    heads: str = "num_attention_heads"
    kv_heads: str | None = "num_key_value_heads"
    head_dim: str | None = "head_dim"
    layers: str = "num_hidden_layers"
    context: str = "max_position_embeddings"
    hidden: str | None = "intermediate_size"
    activation: str | None = "hidden_act"
    eps: str | None = "rms_norm_eps"
    theta: str = "rope_theta"
    fraction: str = "partial_rotary_factor"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFormat:
    """How the configs of a family are read; the defaults are Llama's.

    Attributes:
        keys: names of the sizes.
        bias: of queries, keys, values and the output, unless one of the next two says otherwise.
        qkv_bias: of queries, keys and values.
        out_bias: of the output.
        mlp_bias: of the MLP.
        kv_heads: heads of keys and values, if the keys do not say.
        head_dim: default channels of a head; by default an even share of the width.
        query_key_norm: normalise queries and keys.
        attention: other fields of every layer's attention.
        windows: sliding windows.
        kind: of the MLP.
        activation: default activation of the MLP.
        hidden: channels of the MLP, if the keys do not say.
        expansion: default channels of the MLP, as a multiple of the width.
        norm: of every layer and before the head, with its default epsilon.
        placement: of the norms; no norm follows the last layer if it is "post".
        context: default context length.
        positions: of the stack; rotary by default, as the next four fields say.
        theta: default base of the wavelengths.
        fraction: default share of a head's channels that is rotated; None if the family always
            rotates all of them.
        interleaved: neighbouring channels are rotated together.
        backward: rotated the other way.
        rotaries: the positions of each layer; None in it for the stack's.
        tied: the head is the embedding by default.
        decoder: other fields of the decoder.
    """

    keys: Keys = Keys()
    bias: Flag = False
    qkv_bias: Flag | None = None
    out_bias: Flag | None = None
    mlp_bias: Flag = False
    kv_heads: int | None = None
    head_dim: int | None = None
    query_key_norm: bool = False
    attention: Mapping[str, Any] = field(default_factory=dict)
    windows: Windows = None
    kind: Literal["gated", "mlp"] = "gated"
    activation: str = "silu"
    hidden: int | None = None
    expansion: int | None = None
    norm: NormConfig = RMS
    placement: Placement = "pre"
    context: int | None = None
    positions: Positions | None = None
    theta: float = 10_000.0
    fraction: float | None = None
    interleaved: bool = False
    backward: bool = False
    rotaries: Sequence[Rotary] | None = None
    tied: bool = False
    decoder: Mapping[str, Any] = field(default_factory=dict)

    def read(self, hf: ConfigReader) -> DecoderConfig:
        """A published config as a `DecoderConfig`."""
        keys, width = self.keys, hf.size(self.keys.width)
        eps = self.norm.eps if keys.eps is None else hf.get(keys.eps, float, self.norm.eps)
        norm = replace(self.norm, eps=eps)
        attention = self._attention(hf, width, norm)
        block = BlockConfig(
            mixer=attention,
            feed_forward=self._feed_forward(hf, width),
            norm=norm,
            placement=self.placement,
        )
        context = _size(hf, keys.context, self.context)
        positions = self.positions or self._rotary(hf, attention.head_dim, context)
        windows = self.windows(hf) if callable(self.windows) else self.windows
        blocks = tuple(
            replace(block, mixer=replace(attention, sliding_window=window))
            for window in windows or (None,) * hf.size(keys.layers, most=MAX_LAYERS)
        )
        config = decoder_of(
            hf,
            width=width,
            context_length=context,
            positions=positions,
            blocks=blocks,
            tied=self.tied,
            **self.decoder,
        )
        return config if self.rotaries is None else altered(config, rotaries=self.rotaries)

    def _attention(self, hf: ConfigReader, width: int, norm: NormConfig) -> AttentionConfig:
        keys, heads = self.keys, hf.size(self.keys.heads)
        if keys.head_dim is None and width % heads:
            raise ConfigError(
                f"{hf.name}: {keys.width} must be divisible by {keys.heads} (got {width} and "
                f"{heads}). Correct one of them."
            )
        share = width // heads if self.head_dim is None else self.head_dim
        head_dim = share if keys.head_dim is None else hf.size(keys.head_dim, share)
        kv_heads = self.kv_heads
        if kv_heads is None:
            kv_heads = heads if keys.kv_heads is None else hf.size(keys.kv_heads, heads)
        fields: dict[str, Any] = {
            "num_heads": heads,
            "num_kv_heads": kv_heads,
            "head_dim": head_dim,
            "scale": head_dim**-0.5,
            "qkv_bias": _flag(hf, self.bias if self.qkv_bias is None else self.qkv_bias),
            "out_bias": _flag(hf, self.bias if self.out_bias is None else self.out_bias),
            "query_key_norm": norm if self.query_key_norm else None,
        }
        return AttentionConfig(**fields | dict(self.attention))

    def _feed_forward(self, hf: ConfigReader, width: int) -> FeedForwardConfig:
        keys, activation = self.keys, self.activation
        if self.hidden is not None:
            hidden = self.hidden
        elif keys.hidden is None:
            hidden = (self.expansion or 1) * width
        else:
            default = None if self.expansion is None else self.expansion * width
            hidden = _size(hf, keys.hidden, default)
        if keys.activation is not None:
            activation = hf.get(keys.activation, str, activation)
        return FeedForwardConfig(
            kind=self.kind,
            intermediate_size=hidden,
            activation=read_activation(activation),
            bias=_flag(hf, self.mlp_bias),
        )

    def _rotary(self, hf: ConfigReader, head_dim: int, context_length: int) -> RotaryPositions:
        return read_rotary(
            hf,
            head_dim=head_dim,
            context_length=context_length,
            theta=self.theta,
            fraction=self.fraction,
            names=(self.keys.theta, self.keys.fraction),
            interleaved=self.interleaved,
            backward=self.backward,
        )


def _flag(hf: ConfigReader, flag: Flag) -> bool:
    match flag:
        case bool():
            return flag
        case str():
            return hf.get(flag, bool, False)
        case key, default:
            return hf.get(key, bool, default)


def _size(hf: ConfigReader, key: str, default: int | None) -> int:
    return hf.size(key) if default is None else hf.size(key, default)


def decoder_of(
    hf: ConfigReader,
    *,
    width: int,
    context_length: int,
    positions: Positions,
    blocks: tuple[BlockConfig, ...],
    tied: bool = True,
    **fields: Any,
) -> DecoderConfig:
    """A decoder of these blocks, with the vocabulary and tokens of a config.

    Its final norm is like that of the last layer, unless that layer already ends in one.
    """
    last = blocks[-1]
    return DecoderConfig(
        **hf.model_fields(),
        vocab_size=hf.size("vocab_size"),
        hidden_size=width,
        context_length=context_length,
        positions=positions,
        blocks=blocks,
        final_norm=None if last.placement == "post" else last.norm,
        tied_head=hf.get("tie_word_embeddings", bool, tied),
        **fields,
    )


def altered(
    config: DecoderConfig,
    *,
    attention: Mapping[str, Any] | None = None,
    feed_forward: Mapping[str, Any] | None = None,
    block: Mapping[str, Any] | None = None,
    rotaries: Sequence[Rotary] | None = None,
    **fields: Any,
) -> DecoderConfig:
    """A decoder with other values of some fields."""
    own = rotaries or [layer.attention.rotary for layer in config.blocks]
    blocks = tuple(
        replace(
            layer,
            mixer=replace(layer.attention, rotary=rotary, **(attention or {})),
            feed_forward=replace(layer.dense, **(feed_forward or {})),
            **(block or {}),
        )
        for layer, rotary in zip(config.blocks, own, strict=True)
    )
    return replace(config, blocks=blocks, **fields)
