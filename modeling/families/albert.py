"""ALBERT (Lan et al. 2020): BERT whose layers are one, after narrow embeddings."""

from dataclasses import replace

from ortolan.modeling.config import EncoderConfig, Head, LanguageModelHead
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import bert
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.classifier import read_classifier
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.weights import Table, Target

BASE_MODEL_PREFIX = "albert"

BASE, MASKED, PRETRAINING, CLASSIFIER = (
    f"Albert{kind}"
    for kind in ("Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification")
)

_LAYER = "albert.encoder.albert_layer_groups.{}.albert_layers.0"

WEIGHTS: Table = {
    "albert.embeddings.word_embeddings.weight": Target("embedding.weight"),
    "albert.embeddings.position_embeddings.weight": Target("position_embedding.weight"),
    "albert.embeddings.token_type_embeddings.weight": Target("type_embedding.weight"),
    "albert.embeddings.position_ids": None,
    **bert.linear(
        {
            "albert.embeddings.LayerNorm": "embedding_norm",
            "albert.encoder.embedding_hidden_mapping_in": "embedding_projection",
            f"{_LAYER}.attention.query": "blocks.{}.attention.qkv",
            f"{_LAYER}.attention.key": "blocks.{}.attention.qkv",
            f"{_LAYER}.attention.value": "blocks.{}.attention.qkv",
            f"{_LAYER}.attention.dense": "blocks.{}.attention.out",
            f"{_LAYER}.attention.LayerNorm": "blocks.{}.attention_norm",
            f"{_LAYER}.ffn": "blocks.{}.feed_forward.up",
            f"{_LAYER}.ffn_output": "blocks.{}.feed_forward.down",
            f"{_LAYER}.full_layer_layer_norm": "blocks.{}.feed_forward_norm",
        }
    ),
    **bert.linear(
        {
            "albert.pooler": "head.dense",
            "classifier": "head.out",
            "predictions.dense": "head.transform",
            "predictions.LayerNorm": "head.norm",
        },
        spare=True,
    ),
    "predictions.bias": Target("head.bias", spare=True),
    "predictions.decoder.weight": Target("head.weight", spare=True),
    # A second name of predictions.bias.
    "predictions.decoder.bias": None,
    # Which of two sentences comes first: a task of the pre-training alone.
    "sop_classifier.*": None,
}


def config(hf: ConfigReader) -> EncoderConfig:
    """An `AlbertConfig` of Hugging Face as an `EncoderConfig`.

    Raises:
        ConfigError: layers that are more than one.
    """
    # Written by the first version, and read by none.
    hf.skip("down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks")
    hf.skip("classifier_dropout_prob")
    groups, inner = hf.size("num_hidden_groups", 1), hf.size("inner_group_num", 1)
    if (groups, inner) != (1, 1):
        raise ConfigError(
            f"config.json: expected num_hidden_groups and inner_group_num of 1, got {groups} and "
            f"{inner}. This checkpoint cannot be loaded faithfully."
        )
    architecture = hf.architecture(BASE, MASKED, PRETRAINING, CLASSIFIER)
    read = bert.bert_like(hf, model_type="albert", offset=0, head=None, activation="gelu_new")
    narrow = hf.size("embedding_size", 128)
    head: Head | None = None
    if architecture == CLASSIFIER:
        head = read_classifier(hf, pooling="first", activation="tanh")
    elif architecture != BASE:
        head = LanguageModelHead(
            tied=True,
            bias=True,
            activation=read_activation(hf.get("hidden_act", str, "gelu_new")),
            norm=read.blocks[0].norm,
            width=narrow,
        )
    return replace(read, embedding_dim=narrow, shared_block=True, head=head)
