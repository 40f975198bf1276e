"""ModernBERT (Warner et al. 2024): norms before sublayers, gates, windows on both sides."""

from dataclasses import replace

from ortolan.modeling.config import (
    AttentionConfig,
    BlockConfig,
    EncoderConfig,
    FeedForwardConfig,
    Head,
    LanguageModelHead,
    NormConfig,
    Pooling,
    TokenInput,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import bert
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.classifier import read_classifier
from ortolan.modeling.families.layer_kinds import FULL, SLIDING, read_layer_kinds
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.rope import read_rotaries
from ortolan.modeling.weights import Rows, Table, Target

BASE_MODEL_PREFIX = "model"

BASE, MASKED, CLASSIFIER = (
    f"ModernBert{kind}" for kind in ("Model", "ForMaskedLM", "ForSequenceClassification")
)

POOLINGS: dict[str, Pooling] = {"cls": "first", "mean": "mean"}

_LAYER = "model.layers.{}"

_BODY: Table = {
    "model.embeddings.tok_embeddings.weight": Target("embedding.weight"),
    **bert.linear(
        {
            "model.embeddings.norm": "embedding_norm",
            f"{_LAYER}.attn_norm": "blocks.{}.attention_norm",
            f"{_LAYER}.attn.Wqkv": "blocks.{}.attention.qkv",
            f"{_LAYER}.attn.Wo": "blocks.{}.attention.out",
            f"{_LAYER}.mlp_norm": "blocks.{}.feed_forward_norm",
            f"{_LAYER}.mlp.Wo": "blocks.{}.feed_forward.down",
            "model.final_norm": "final_norm",
        }
    ),
    **{
        f"{_LAYER}.mlp.Wi.{kind}": tuple(
            Target(f"blocks.{{}}.feed_forward.{ours}.{kind}", rows=Rows(1, 2, -1, ((i, i + 1),)))
            for i, ours in enumerate(("gate", "up"))
        )
        for kind in ("weight", "bias")
    },
    "decoder.bias": Target("head.bias", spare=True),
    "decoder.weight": Target("head.weight", spare=True),
}


def WEIGHTS(config: EncoderConfig) -> Table:  # noqa: N802 - the table
    """The table: a layer of the same names is below each of the heads."""
    dense = "transform" if isinstance(config.head, LanguageModelHead) else "dense"
    heads = {"head.dense": f"head.{dense}", "head.norm": "head.norm", "classifier": "head.out"}
    return {**_BODY, **bert.linear(heads, spare=True)}


def config(hf: ConfigReader) -> EncoderConfig:
    """A `ModernBertConfig` of Hugging Face as an `EncoderConfig`.

    Raises:
        ConfigError: widths that do not fit, or a pooling that Ortolan does not have.
    """
    hf.skip("embedding_dropout", "mlp_dropout", "classifier_dropout")
    hf.skip("initializer_cutoff_factor", "deterministic_flash_attn", "cls_token_id")
    # How transformers computed the same faster, and the loss; and keys of BERT.
    hf.skip("reference_compile", "repad_logits_with_grad", "sparse_pred_ignore_index")
    hf.skip("sparse_prediction", "layer_norm_eps", "position_embedding_type")
    hf.require("tie_word_embeddings")
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    if width % heads:
        raise ConfigError(
            f"{hf.name}: expected hidden_size divisible by num_attention_heads, got {width} and "
            f"{heads}. Correct one of them."
        )
    has_bias = hf.get("norm_bias", bool, False)
    norm = NormConfig(kind="layer", eps=hf.get("norm_eps", float, 1e-5), bias=has_bias)
    period = hf.size("global_attn_every_n_layers", 3)
    numbers = range(hf.size("num_hidden_layers", most=MAX_LAYERS))
    kinds = read_layer_kinds(hf, [SLIDING if i % period else FULL for i in numbers])
    context_length = hf.size("max_position_embeddings", 8192)
    rotaries = read_rotaries(
        hf,
        {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)},
        head_dim=width // heads,
        context_length=context_length,
    )
    attention = AttentionConfig(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=width // heads,
        scale=(width // heads) ** -0.5,
        causal=False,
    )
    # Half of the window lies on each side.
    local = replace(
        attention,
        sliding_window=hf.size("local_attention", 128) // 2 + 1,
        rotary=rotaries[SLIDING],
    )
    of_kind = {FULL: attention, SLIDING: local}
    return EncoderConfig(
        model_type="modernbert",
        input=TokenInput(vocab_size=hf.size("vocab_size")),
        hidden_size=width,
        context_length=context_length,
        positions=rotaries[FULL],
        embedding_norm=norm,
        blocks=_blocks(hf, [of_kind[kind] for kind in kinds], norm),
        final_norm=norm,
        head=_head(hf, norm),
        bos_token_id=hf.get("bos_token_id", int, None),
        eos_token_ids=hf.token_ids("eos_token_id"),
        pad_token_id=hf.get("pad_token_id", int, None),
    )


def _blocks(
    hf: ConfigReader, attentions: list[AttentionConfig], norm: NormConfig
) -> tuple[BlockConfig, ...]:
    """The layers, by the attention of each."""
    bias = hf.get("attention_bias", bool, False)
    feed_forward = FeedForwardConfig(
        kind="gated",
        intermediate_size=hf.size("intermediate_size"),
        activation=read_activation(hf.get("hidden_activation", str, "gelu")),
        bias=hf.get("mlp_bias", bool, False),
    )
    return tuple(
        BlockConfig(
            mixer=replace(attention, qkv_bias=bias, out_bias=bias),
            feed_forward=feed_forward,
            norm=norm,
            # The embedding's norm is before the first layer.
            attention_norm=number > 0,
        )
        for number, attention in enumerate(attentions)
    )


def _head(hf: ConfigReader, norm: NormConfig) -> Head | None:
    architecture = hf.architecture(BASE, MASKED, CLASSIFIER)
    activation = read_activation(hf.get("classifier_activation", str, "gelu"))
    dense_bias = hf.get("classifier_bias", bool, False)
    bias = hf.get("decoder_bias", bool, True)
    pooling = hf.get("classifier_pooling", str, "cls")
    if architecture == BASE:
        return None
    if architecture == MASKED:
        return LanguageModelHead(
            tied=True, bias=bias, activation=activation, norm=norm, dense_bias=dense_bias
        )
    if pooling not in POOLINGS:
        raise ConfigError(
            f"{hf.name}: expected classifier_pooling to be {' or '.join(POOLINGS)}, got "
            f"{pooling!r:.40}. This checkpoint cannot be loaded faithfully."
        )
    return read_classifier(
        hf,
        pooling=POOLINGS[pooling],
        activation=activation,
        dense_bias=dense_bias,
        norm=norm,
    )
