"""MPNet (Song et al. 2020): RoBERTa whose layers share a bias of distances besides."""

from dataclasses import replace

from ortolan.modeling.config import (
    EncoderConfig,
    Head,
    LanguageModelHead,
    LearnedPositions,
    RelativeBiasPositions,
    TokenInput,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import bert
from ortolan.modeling.families.classifier import read_classifier
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.weights import Table, Target

BASE_MODEL_PREFIX = "mpnet"

BASE, MASKED, CLASSIFIER = (
    f"MPNet{kind}" for kind in ("Model", "ForMaskedLM", "ForSequenceClassification")
)

BUCKETS = 32
"""Of distances, whatever the config says of its table."""

_LAYER = "mpnet.encoder.layer.{}"

WEIGHTS: Table = {
    "mpnet.embeddings.word_embeddings.weight": Target("embedding.weight"),
    "mpnet.embeddings.position_embeddings.weight": Target("position_embedding.weight"),
    "mpnet.embeddings.position_ids": None,
    "mpnet.encoder.relative_attention_bias.weight": Target("position_bias.weight"),
    **bert.linear(
        {
            "mpnet.embeddings.LayerNorm": "embedding_norm",
            f"{_LAYER}.attention.attn.q": "blocks.{}.attention.qkv",
            f"{_LAYER}.attention.attn.k": "blocks.{}.attention.qkv",
            f"{_LAYER}.attention.attn.v": "blocks.{}.attention.qkv",
            f"{_LAYER}.attention.attn.o": "blocks.{}.attention.out",
            f"{_LAYER}.attention.LayerNorm": "blocks.{}.attention_norm",
            f"{_LAYER}.intermediate.dense": "blocks.{}.feed_forward.up",
            f"{_LAYER}.output.dense": "blocks.{}.feed_forward.down",
            f"{_LAYER}.output.LayerNorm": "blocks.{}.feed_forward_norm",
        }
    ),
    **bert.roberta_heads("mpnet"),
}


def config(hf: ConfigReader) -> EncoderConfig:
    """An `MPNetConfig` of Hugging Face as an `EncoderConfig`.

    Raises:
        ConfigError: buckets of distances of another number.
    """
    buckets = hf.size("relative_attention_num_buckets", BUCKETS)
    if buckets != BUCKETS:
        raise ConfigError(
            f"config.json: expected relative_attention_num_buckets to be {BUCKETS}, got {buckets}. "
            "This checkpoint cannot be loaded faithfully."
        )
    architecture = hf.architecture(BASE, MASKED, CLASSIFIER)
    # The rows of the padding id and below are for padding.
    read = bert.bert_like(hf, model_type="mpnet", offset=2, head=None)
    head: Head | None = None
    if architecture == CLASSIFIER:
        head = read_classifier(hf, pooling="first", activation="tanh")
    elif architecture == MASKED:
        head = LanguageModelHead(tied=True, bias=True, activation="gelu", norm=read.blocks[0].norm)
    return replace(
        read,
        input=TokenInput(vocab_size=hf.size("vocab_size")),
        positions=RelativeBiasPositions(buckets=BUCKETS, absolute=LearnedPositions(offset=2)),
        head=head,
    )
