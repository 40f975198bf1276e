"""BART (Lewis et al. 2020): post-norm encoder-decoder with learned positions.

`BartLike` serves every family that differs from BART by values alone.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

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

# Of blenderbots, which checkpoints say and transformers does not read.
_BLENDERBOT = ("do_blenderbot_90_layernorm", "layernorm_variant", "extra_layer_norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class BartLike:
    """A family that differs from BART by values alone.

    Attributes:
        model_type: of its configs.
        classes: what the names of its models begin with.
        positions: of both sides.
        placement: of the norms; where they come first, each side ends with one.
        normed_embedding: each side begins with a norm.
        logits_bias: the checkpoint of a head may hold one.
        scaled: its embeddings are, where the config does not say.
        head: what the name of its model with a head ends with.
    """

    BASE_MODEL_PREFIX: ClassVar[str] = "model"

    model_type: str
    classes: str
    positions: LearnedPositions | SinusoidalPositions
    placement: Literal["pre", "post"] = "post"
    normed_embedding: bool = True
    logits_bias: bool = True
    scaled: bool = False
    head: str = "ForConditionalGeneration"

    @property
    def WEIGHTS(self) -> Table:  # noqa: N802 - the table
        """Published weight names to ours."""
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

    def config(self, hf: ConfigReader) -> EncoderDecoderConfig:
        """A published config as an `EncoderDecoderConfig`."""
        return self.read(hf, decoder_vocab_size=None)

    def read(self, hf: ConfigReader, *, decoder_vocab_size: int | None) -> EncoderDecoderConfig:
        """The same; the embedding is shared unless the decoder's size is given.

        Raises:
            ConfigError: a switch of a variant that is unknown, or widths that do not fit.
        """
        architecture = hf.architecture(f"{self.classes}Model", f"{self.classes}{self.head}")
        self._check_switches(hf)
        width, vocab_size = hf.size("d_model"), hf.size("vocab_size")
        context_length = hf.size("max_position_embeddings")
        scale = math.sqrt(width) if hf.get("scale_embedding", bool, self.scaled) else 1.0
        embedding_norm = NORM if self.normed_embedding else None
        final_norm = NORM if self.placement == "pre" else None
        positions = self.positions
        if isinstance(positions, SinusoidalPositions) and positions.offset:
            # The first position is the one after the number of the padding token.
            positions = replace(positions, offset=hf.get("pad_token_id", int, 1) + 1)
        encoder = EncoderConfig(
            model_type=self.model_type,
            input=TokenInput(vocab_size=vocab_size),
            hidden_size=width,
            context_length=context_length,
            positions=positions,
            embedding_scale=scale,
            embedding_norm=embedding_norm,
            blocks=_blocks(hf, "encoder", width, self.placement),
            final_norm=final_norm,
        )
        decoder = DecoderConfig(
            model_type=self.model_type,
            vocab_size=decoder_vocab_size or vocab_size,
            hidden_size=width,
            context_length=context_length,
            positions=positions,
            embedding_scale=scale,
            embedding_norm=embedding_norm,
            blocks=_blocks(hf, "decoder", width, self.placement),
            final_norm=final_norm,
            tied_head=True,
            # transformers keeps it with the head, and takes zero where there was none.
            head_bias=self.logits_bias and architecture.endswith(self.head),
        )
        return EncoderDecoderConfig(
            model_type=self.model_type,
            encoder=encoder,
            decoder=decoder,
            shared_embedding=decoder_vocab_size is None,
            decoder_start_token_id=hf.get("decoder_start_token_id", int),
            bos_token_id=hf.get("bos_token_id", int, None),
            eos_token_ids=hf.token_ids("eos_token_id"),
            pad_token_id=hf.get("pad_token_id", int, None),
        )

    def _check_switches(self, hf: ConfigReader) -> None:
        """Refuse what makes another variant of a model; the switches of old checkpoints too."""
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

    def hf_config(self, config: EncoderDecoderConfig) -> dict[str, object]:
        """The `config.json` of a model that computes what `config` says."""
        encoder, decoder = config.encoder.blocks, config.decoder.blocks
        eos = list(config.eos_token_ids) or None
        has_head = config.decoder.head_bias or not self.logits_bias
        return {
            "architectures": [f"{self.classes}{self.head if has_head else 'Model'}"],
            "model_type": self.model_type,
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


def _blocks(
    hf: ConfigReader, side: str, width: int, placement: Literal["pre", "post"]
) -> tuple[BlockConfig, ...]:
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


_AFTER_TWO = LearnedPositions(offset=2)

BART = BartLike(model_type="bart", classes="Bart", positions=_AFTER_TWO)

BLENDERBOT = BartLike(
    model_type="blenderbot",
    classes="Blenderbot",
    positions=LearnedPositions(),
    placement="pre",
    normed_embedding=False,
)
"""Blenderbot (Roller et al. 2021)."""

M2M_100 = BartLike(
    model_type="m2m_100",
    classes="M2M100",
    positions=SinusoidalPositions(layout="halves", offset=2, endpoint=True),
    placement="pre",
    normed_embedding=False,
    logits_bias=False,
    scaled=True,
)
"""M2M-100 (Fan et al. 2021), and NLLB (Costa-jussa et al. 2022)."""

MBART = BartLike(model_type="mbart", classes="MBart", positions=_AFTER_TWO, placement="pre")
"""mBART (Liu et al. 2020)."""

MVP = BartLike(model_type="mvp", classes="Mvp", positions=_AFTER_TWO)
"""MVP (Tang et al. 2023), without its prompts."""

PEGASUS = BartLike(
    model_type="pegasus",
    classes="Pegasus",
    positions=SinusoidalPositions(layout="halves"),
    placement="pre",
    normed_embedding=False,
)
"""PEGASUS (Zhang et al. 2020)."""

PLBART = BartLike(model_type="plbart", classes="PLBart", positions=_AFTER_TWO, scaled=True)
"""PLBART (Ahmad et al. 2021)."""
