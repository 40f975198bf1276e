"""BART (Lewis et al. 2020) and its kin: encoder-decoders with absolute positions.

`BartFormat` serves the families that differ from BART by values: BART has norms after the residuals
and learned positions.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from ortolan.modeling.config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    FeedForwardConfig,
    LearnedPositions,
    NormConfig,
    SinusoidalPositions,
    TokenInput,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.activations import read_activation, write_activation
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Table, Target

NORM = NormConfig(kind="layer", eps=1e-5)

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

# Keys of Blenderbot checkpoints, which transformers does not read.
_BLENDERBOT = ("do_blenderbot_90_layernorm", "layernorm_variant", "extra_layer_norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class BartFormat:
    """A checkpoint format that differs from BART's by values alone.

    Attributes:
        classes: the prefix of the names of its model classes.
        positions: of both sides.
        placement: of the norms; if they come first, each side ends with one.
        normed_embedding: each side begins with a norm.
        logits_bias: the checkpoint of a model with a head may hold one.
        scaled: the embeddings are scaled by default.
        head: the suffix of the name of its model with a head.
    """

    classes: str
    positions: LearnedPositions | SinusoidalPositions
    placement: Literal["pre", "post"] = "post"
    normed_embedding: bool = True
    logits_bias: bool = True
    scaled: bool = False
    head: str = "ForConditionalGeneration"

    @property
    def family(self) -> Family[EncoderDecoderConfig]:
        """The format as a family."""
        return Family(config=self.read, weights=self._weights(), hf_config=self.write)

    def _weights(self) -> Table:
        norms = {"layernorm_embedding": "embedding_norm"} if self.normed_embedding else {}
        norms |= {"layer_norm": "final_norm"} if self.placement == "pre" else {}
        is_learned = isinstance(self.positions, LearnedPositions)
        table = dict(BODY)
        for side in ("encoder", "decoder"):
            # A fixed table follows from the config.
            target = Target(f"{side}.position_embedding.weight") if is_learned else None
            table[f"model.{side}.embed_positions.weight"] = target
            for theirs, ours in norms.items():
                for kind in ("weight", "bias"):
                    table[f"model.{side}.{theirs}.{kind}"] = Target(f"{side}.{ours}.{kind}")
        return table

    def read(
        self, hf: ConfigReader, *, decoder_vocab_size: int | None = None
    ) -> EncoderDecoderConfig:
        """A published config as an `EncoderDecoderConfig`."""
        architecture = hf.architecture(f"{self.classes}Model", f"{self.classes}{self.head}")
        self._check_switches(hf)
        width, vocab_size = hf.size("d_model"), hf.size("vocab_size")
        scaled = hf.get("scale_embedding", bool, self.scaled)
        positions = self.positions
        if isinstance(positions, SinusoidalPositions) and positions.offset:
            # The first position is the one after the number of the padding token.
            padding = hf.get("pad_token_id", int, 1)
            positions = replace(positions, offset=padding + 1, padding=padding)
        stack: dict[str, Any] = {
            "model_type": hf.get("model_type", str),
            "hidden_size": width,
            "context_length": hf.size("max_position_embeddings"),
            "positions": positions,
            "embedding_scale": math.sqrt(width) if scaled else 1.0,
            "embedding_norm": NORM if self.normed_embedding else None,
            "final_norm": NORM if self.placement == "pre" else None,
        }
        encoder = EncoderConfig(
            **stack,
            input=TokenInput(vocab_size=vocab_size),
            blocks=read_blocks(hf, "encoder", width, self.placement),
        )
        decoder = DecoderConfig(
            **stack,
            vocab_size=decoder_vocab_size or vocab_size,
            blocks=read_blocks(hf, "decoder", width, self.placement),
            tied_head=True,
            # transformers keeps it with the head, and takes zero where a checkpoint has none.
            head_bias=self.logits_bias and architecture.endswith(self.head),
        )
        return EncoderDecoderConfig(
            **hf.model_fields(),
            encoder=encoder,
            decoder=decoder,
            shared_embedding=decoder_vocab_size is None,
            decoder_start_token_id=hf.get("decoder_start_token_id", int),
        )

    def _check_switches(self, hf: ConfigReader) -> None:
        """Refuse the switches of other variants, those of old checkpoints included."""
        hf.skip("activation_dropout", "dropout", "classif_dropout", "classifier_dropout")
        hf.skip("encoder_layerdrop", "decoder_layerdrop", "init_std", "num_hidden_layers")
        hf.skip("extra_pos_embeddings", "force_bos_token_to_be_generated", *_BLENDERBOT)
        hf.skip("prompt_length", "prompt_mid_dim")
        switches = {
            "add_final_layer_norm": self.placement == "pre",
            "normalize_before": self.placement == "pre",
            "normalize_embedding": self.normed_embedding,
            "static_position_embeddings": isinstance(self.positions, SinusoidalPositions),
            "add_bias_logits": False,
            "use_prompt": False,
            "tie_word_embeddings": True,
            "is_encoder_decoder": True,
        }
        for switch, is_on in switches.items():
            (hf.require if is_on else hf.refuse)(switch)

    def write(self, config: EncoderDecoderConfig) -> dict[str, object]:
        """The `config.json` of a model that computes what `config` says."""
        encoder, decoder = config.encoder.blocks, config.decoder.blocks
        eos = list(config.eos_token_ids) or None
        has_head = config.decoder.head_bias or not self.logits_bias
        return {
            "architectures": [f"{self.classes}{self.head if has_head else 'Model'}"],
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


def read_blocks(
    hf: ConfigReader, side: str, width: int, placement: Literal["pre", "post"]
) -> tuple[BlockConfig, ...]:
    """The layers of one side; those of the decoder attend to the source."""
    heads = hf.size(f"{side}_attention_heads")
    if width % heads:
        raise ConfigError(
            f"{hf.name}: d_model must be divisible by {side}_attention_heads (got {width} and "
            f"{heads}). Correct one of them."
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
        mixer=attention(causal=is_decoder),
        cross_attention=attention(causal=False) if is_decoder else None,
        feed_forward=FeedForwardConfig(
            kind="mlp",
            intermediate_size=hf.size(f"{side}_ffn_dim"),
            activation=read_activation(hf.get("activation_function", str, "gelu")),
            bias=True,
        ),
        norm=NORM,
        placement=placement,
    )
    return (block,) * hf.size(f"{side}_layers", most=MAX_LAYERS)


_MARIAN = BartFormat(
    classes="Marian",
    positions=SinusoidalPositions(),
    normed_embedding=False,
    head="MTModel",
)


def _marian(hf: ConfigReader) -> EncoderDecoderConfig:
    """Marian (Junczys-Dowmunt et al. 2018): the translator of "Attention Is All You Need"."""
    vocab_size = hf.size("vocab_size")
    target_size = hf.size("decoder_vocab_size", vocab_size)
    shared = hf.get("share_encoder_decoder_embeddings", bool, True)
    if shared and target_size != vocab_size:
        raise ConfigError(
            f"{hf.name}: a shared embedding has one vocabulary (got {vocab_size} and {target_size} "
            "tokens). Correct decoder_vocab_size."
        )
    return _MARIAN.read(hf, decoder_vocab_size=None if shared else target_size)


def _marian_hf_config(config: EncoderDecoderConfig) -> dict[str, object]:
    values = _MARIAN.write(config)
    source = config.encoder.input
    if isinstance(source, TokenInput):
        values["vocab_size"] = source.vocab_size
    return values | {
        "decoder_vocab_size": config.decoder.vocab_size,
        "share_encoder_decoder_embeddings": config.shared_embedding,
    }


_BART = BartFormat(classes="Bart", positions=LearnedPositions(offset=2))

_FORMATS = {
    "bart": _BART,
    # Blenderbot (Roller et al. 2021).
    "blenderbot": BartFormat(
        classes="Blenderbot",
        positions=LearnedPositions(),
        placement="pre",
        normed_embedding=False,
    ),
    # M2M-100 (Fan et al. 2021), and NLLB (Costa-jussa et al. 2022).
    "m2m_100": BartFormat(
        classes="M2M100",
        positions=SinusoidalPositions(offset=2, endpoint=True),
        placement="pre",
        normed_embedding=False,
        logits_bias=False,
        scaled=True,
    ),
    # mBART (Liu et al. 2020).
    "mbart": replace(_BART, classes="MBart", placement="pre"),
    # MVP (Tang et al. 2023), without its prompts.
    "mvp": replace(_BART, classes="Mvp"),
    # PEGASUS (Zhang et al. 2020).
    "pegasus": BartFormat(
        classes="Pegasus",
        positions=SinusoidalPositions(),
        placement="pre",
        normed_embedding=False,
    ),
    # PLBART (Ahmad et al. 2021).
    "plbart": replace(_BART, classes="PLBart", scaled=True),
}

FAMILIES: dict[str, Family[EncoderDecoderConfig]] = {
    **{name: form.family for name, form in _FORMATS.items()},
    "marian": replace(_MARIAN.family, config=_marian, hf_config=_marian_hf_config),
}
