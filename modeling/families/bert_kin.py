"""BERTs with a part that no other has: BigBird, RemBERT and RoFormer."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ortolan.modeling.config import (
    EncoderConfig,
    Head,
    LanguageModelHead,
    RotaryPositions,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import bert
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.classifier import read_classifier
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.weights import Table, Target

KINDS = ("Model", "ForMaskedLM", "ForSequenceClassification")


@dataclass(frozen=True, slots=True, kw_only=True)
class BertKin:
    """One of them; see `families.Family`."""

    config: Callable[[ConfigReader], EncoderConfig]
    WEIGHTS: Table
    BASE_MODEL_PREFIX: str


def _big_bird(hf: ConfigReader) -> EncoderConfig:
    """BigBird (Zaheer et al. 2020), for texts that are too short for its sparse attention."""
    hf.require("use_bias")
    kind = hf.get("attention_type", str, "block_sparse")
    full = (5 + 2 * hf.size("num_random_blocks", 3)) * hf.size("block_size", 64)
    if kind not in ("block_sparse", "original_full"):
        raise ConfigError(
            f"{hf.name}: expected attention_type block_sparse or original_full, got {kind!r:.40}. "
            "This checkpoint cannot be loaded faithfully."
        )
    activation = hf.get("hidden_act", str, "gelu_new")
    read = bert.bert_like(
        hf,
        model_type="big_bird",
        offset=0,
        head=None,
        activation=activation,
    )
    # Up to this length transformers computes with all tokens, too.
    most = read.context_length if kind == "original_full" else full
    is_scaled = hf.get("rescale_embeddings", bool, False)
    return replace(
        read,
        context_length=min(read.context_length, most),
        embedding_scale=math.sqrt(read.hidden_size) if is_scaled else 1.0,
        head=_head(hf, "BigBird", read, activation, classifier=activation),
    )


def _rembert(hf: ConfigReader) -> EncoderConfig:
    """RemBERT (Chung et al. 2021): narrow embeddings, and wide ones before the logits."""
    hf.skip("classifier_dropout_prob")
    tied = hf.get("tie_word_embeddings", bool, False)
    if tied:
        raise ConfigError(
            f"{hf.name}: expected tie_word_embeddings false, got true. "
            "This checkpoint cannot be loaded faithfully."
        )
    activation = hf.get("hidden_act", str, "gelu")
    read = bert.bert_like(hf, model_type="rembert", offset=0, head=None, tied=False)
    head = _head(hf, "RemBert", read, activation, classifier="tanh")
    if isinstance(head, LanguageModelHead):
        head = replace(head, tied=False, width=hf.size("output_embedding_size", 1664))
    hf.skip("output_embedding_size")
    return replace(read, embedding_dim=hf.size("input_embedding_size", 256), head=head)


def _roformer(hf: ConfigReader) -> EncoderConfig:
    """RoFormer (Su et al. 2021): rotary positions, neighbouring channels together."""
    hf.refuse("rotary_value")
    activation = hf.get("hidden_act", str, "gelu")
    read = bert.bert_like(hf, model_type="roformer", offset=0, head=None)
    narrow = hf.size("embedding_size", read.hidden_size)
    head = _head(hf, "RoFormer", read, activation, classifier=activation)
    if isinstance(head, LanguageModelHead):
        head = replace(head, width=narrow)
    return replace(
        read,
        positions=RotaryPositions(dim=read.blocks[0].attention.head_dim, interleaved=True),
        embedding_dim=None if narrow == read.hidden_size else narrow,
        head=head,
    )


def _head(
    hf: ConfigReader, classes: str, read: EncoderConfig, activation: str, *, classifier: str
) -> Head | None:
    base, masked, classes_of = (f"{classes}{kind}" for kind in KINDS)
    name = hf.architecture(base, masked, classes_of)
    if name == base:
        return None
    if name == masked:
        act, norm = read_activation(activation), read.blocks[0].norm
        return LanguageModelHead(tied=True, bias=True, activation=act, norm=norm)
    return read_classifier(hf, pooling="first", activation=read_activation(classifier))


_OWN_CLASSIFIER = bert.linear(
    {"classifier.dense": "head.dense", "classifier.out_proj": "head.out"}, spare=True
)

_ROFORMER: Table = {
    **bert.body("roformer"),
    **bert.masked_head(),
    **_OWN_CLASSIFIER,
    **bert.linear({"roformer.embeddings_project": "embedding_projection"}),
    # A fixed table, which follows from the config.
    "roformer.encoder.embed_positions.weight": None,
}

_REMBERT: Table = {
    **bert.body("rembert"),
    **bert.linear({"rembert.encoder.embedding_hidden_mapping_in": "embedding_projection"}),
    **bert.linear(
        {
            "rembert.pooler.dense": "head.dense",
            "classifier": "head.out",
            "cls.predictions.dense": "head.transform",
            "cls.predictions.LayerNorm": "head.norm",
        },
        spare=True,
    ),
    "cls.predictions.decoder.weight": Target("head.weight", spare=True),
    "cls.predictions.decoder.bias": Target("head.bias", spare=True),
}

_BIG_BIRD: Table = {
    **bert.body("bert"),
    **bert.masked_head(),
    **_OWN_CLASSIFIER,
    "bert.pooler.weight": None,
    "bert.pooler.bias": None,
}

BIG_BIRD = BertKin(config=_big_bird, WEIGHTS=_BIG_BIRD, BASE_MODEL_PREFIX="bert")
REMBERT = BertKin(config=_rembert, WEIGHTS=_REMBERT, BASE_MODEL_PREFIX="rembert")
ROFORMER = BertKin(config=_roformer, WEIGHTS=_ROFORMER, BASE_MODEL_PREFIX="roformer")
