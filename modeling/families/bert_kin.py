"""BERTs with a part of their own: BigBird, RemBERT, RoFormer, ELECTRA, ALBERT, MPNet, DistilBERT.

RemBERT (Chung et al. 2021), ELECTRA (Clark et al. 2020) and ALBERT (Lan et al. 2020) have
embeddings that are narrower than the stream; ALBERT's layers are one. RoFormer (Su et al. 2021) has
rotary positions, MPNet (Song et al. 2020) biases of distances that all layers share.
"""

import math
from dataclasses import replace

from ortolan.modeling.config import (
    EncoderConfig,
    Head,
    HeadLayer,
    LanguageModelHead,
    LearnedPositions,
    RelativeBiasPositions,
    RotaryPositions,
    TokenInput,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import bert
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.bert import with_token_heads
from ortolan.modeling.families.classifier import read_head
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.norms import layer_norm
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.tables import (
    DOWN,
    NORM_1,
    NORM_2,
    OUT,
    QKV,
    UP,
    layer,
    linear,
    qkv,
    without,
)
from ortolan.modeling.weights import Table, Target

BUCKETS = 32
"""Buckets of distances in MPNet, whatever its config says of the table."""

DISTIL_NORM = layer_norm(1e-12)


def _big_bird(hf: ConfigReader) -> EncoderConfig:
    """BigBird (Zaheer et al. 2020), for sequences that are too short for its sparse attention."""
    hf.require("use_bias")
    kind = hf.get("attention_type", str, "block_sparse")
    full = (5 + 2 * hf.size("num_random_blocks", 3)) * hf.size("block_size", 64)
    if kind not in ("block_sparse", "original_full"):
        raise ConfigError(
            f"{hf.name}: attention_type must be block_sparse or original_full (got {kind!r:.40}). "
            "This checkpoint cannot be loaded faithfully."
        )
    activation = hf.get("hidden_act", str, "gelu_new")
    config = bert.read_encoder(hf, activation=activation)
    # Up to this length transformers attends to all tokens, too.
    rows = config.context_length
    longest = rows if kind == "original_full" else min(rows, full)
    scaled = hf.get("rescale_embeddings", bool, False)
    return replace(
        config,
        context_length=longest,
        positions=LearnedPositions(spare=rows - longest),
        embedding_scale=math.sqrt(config.hidden_size) if scaled else 1.0,
        # Its model for question answering has more layers in the head.
        head=_head(hf, "BigBird", config, activation, classifier=activation, answers=False),
    )


def _rembert(hf: ConfigReader) -> EncoderConfig:
    """Narrow embeddings, and wide ones before the logits."""
    hf.skip("classifier_dropout_prob")
    hf.refuse("tie_word_embeddings")
    config = bert.read_encoder(hf, tied=False)
    activation = hf.get("hidden_act", str, "gelu")
    head = _head(hf, "RemBert", config, activation, classifier="tanh")
    width = hf.size("output_embedding_size", 1664)
    if isinstance(head, LanguageModelHead) and head.layer:
        head = replace(head, tied=False, layer=replace(head.layer, width=width))
    return replace(config, embedding_dim=hf.size("input_embedding_size", 256), head=head)


def _roformer(hf: ConfigReader) -> EncoderConfig:
    hf.refuse("rotary_value")
    config = bert.read_encoder(hf)
    narrow = hf.size("embedding_size", config.hidden_size)
    activation = hf.get("hidden_act", str, "gelu")
    head = _head(hf, "RoFormer", config, activation, classifier=activation)
    if isinstance(head, LanguageModelHead) and head.layer:
        head = replace(head, layer=replace(head.layer, width=narrow))
    return replace(
        config,
        positions=RotaryPositions(dim=config.blocks[0].attention.head_dim, interleaved=True),
        embedding_dim=None if narrow == config.hidden_size else narrow,
        head=head,
    )


def _head(
    hf: ConfigReader,
    classes: str,
    config: EncoderConfig,
    activation: str,
    *,
    classifier: str,
    answers: bool = True,
) -> Head | None:
    """A head; its language model has the activation of the layers."""
    layer = HeadLayer(activation=read_activation(activation), norm=config.blocks[0].norm)
    return read_head(
        hf,
        classes,
        LanguageModelHead(tied=True, bias=True, layer=layer),
        answers=answers,
        layer=HeadLayer(activation=read_activation(classifier)),
    )


def _electra(hf: ConfigReader) -> EncoderConfig:
    # Keys of heads that are not served.
    hf.skip("summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj")
    config = bert.read_encoder(hf)
    narrow = hf.size("embedding_size", 128)
    layer = HeadLayer(activation="gelu", norm=config.blocks[0].norm, width=narrow)
    language_model = LanguageModelHead(tied=True, bias=True, layer=layer)
    return replace(
        config,
        embedding_dim=None if narrow == config.hidden_size else narrow,
        head=read_head(hf, "Electra", language_model, layer=HeadLayer(activation="gelu")),
    )


def _albert(hf: ConfigReader) -> EncoderConfig:
    # Written by the first version, and read by none.
    hf.skip("down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks")
    hf.skip("classifier_dropout_prob")
    groups, inner = hf.size("num_hidden_groups", 1), hf.size("inner_group_num", 1)
    if (groups, inner) != (1, 1):
        raise ConfigError(
            f"{hf.name}: num_hidden_groups and inner_group_num must be 1 (got {groups} and "
            f"{inner}). This checkpoint cannot be loaded faithfully."
        )
    config = bert.read_encoder(hf, activation="gelu_new")
    narrow = hf.size("embedding_size", 128)
    layer = HeadLayer(
        activation=read_activation(hf.get("hidden_act", str, "gelu_new")),
        norm=config.blocks[0].norm,
        width=narrow,
    )
    language_model = LanguageModelHead(tied=True, bias=True, layer=layer)
    tanh = HeadLayer(activation="tanh")
    head = read_head(hf, "Albert", language_model, pretraining=True, layer=tanh)
    return replace(config, embedding_dim=narrow, shared_block=True, head=head)


def _mpnet(hf: ConfigReader) -> EncoderConfig:
    buckets = hf.size("relative_attention_num_buckets", BUCKETS)
    if buckets != BUCKETS:
        raise ConfigError(
            f"{hf.name}: relative_attention_num_buckets must be {BUCKETS} (got {buckets}). "
            "This checkpoint cannot be loaded faithfully."
        )
    # The rows of the padding id and below are for padding.
    config = bert.read_encoder(hf, padding=1)
    layer = HeadLayer(activation="gelu", norm=config.blocks[0].norm)
    language_model = LanguageModelHead(tied=True, bias=True, layer=layer)
    return replace(
        config,
        input=TokenInput(vocab_size=hf.size("vocab_size")),
        positions=RelativeBiasPositions(
            buckets=BUCKETS, absolute=LearnedPositions(offset=2, padding=1)
        ),
        head=read_head(hf, "MPNet", language_model, layer=HeadLayer(activation="tanh")),
    )


def _distilbert(hf: ConfigReader) -> EncoderConfig:
    """BERT without types of tokens (Sanh et al. 2019)."""
    hf.skip("dropout", "qa_dropout", "seq_classif_dropout", "tie_word_embeddings")
    # Only how the table began: the checkpoint holds it either way.
    hf.skip("sinusoidal_pos_embds", "tie_weights_")
    activation = hf.get("activation", str, "gelu")
    language_model = LanguageModelHead(
        tied=hf.get("tie_word_embeddings", bool, True),
        bias=True,
        layer=HeadLayer(activation=read_activation(activation), norm=DISTIL_NORM),
    )
    width, heads = hf.size("dim"), hf.size("n_heads")
    if width % heads:
        raise ConfigError(
            f"{hf.name}: dim must be divisible by n_heads (got {width} and {heads}). "
            "Correct one of them."
        )
    block = bert.encoder_block(
        width=width,
        heads=heads,
        hidden=hf.size("hidden_dim"),
        activation=activation,
        norm=DISTIL_NORM,
    )
    return EncoderConfig(
        **hf.model_fields(),
        input=TokenInput(vocab_size=hf.size("vocab_size")),
        hidden_size=width,
        context_length=hf.size("max_position_embeddings"),
        positions=LearnedPositions(),
        embedding_norm=DISTIL_NORM,
        blocks=(block,) * hf.size("n_layers", most=MAX_LAYERS),
        final_norm=None,
        head=read_head(hf, "DistilBert", language_model, layer=HeadLayer(activation="relu")),
    )


_CLASSIFIER = linear(
    {"classifier.dense": "head.dense", "classifier.out_proj": "head.out"}, spare=True
)

_BIG_BIRD: Table = {
    **bert.body("bert"),
    **bert.masked_head(),
    **_CLASSIFIER,
    "bert.pooler.weight": None,
    "bert.pooler.bias": None,
}

_ROFORMER: Table = {
    **bert.body("roformer"),
    **bert.masked_head(),
    **_CLASSIFIER,
    **linear({"roformer.embeddings_project": "embedding_projection"}),
    # A fixed table, which follows from the config.
    "roformer.encoder.embed_positions.weight": None,
}

_REMBERT: Table = {
    **bert.body("rembert"),
    **linear({"rembert.encoder.embedding_hidden_mapping_in": "embedding_projection"}),
    **linear(
        {
            "rembert.pooler.dense": "head.dense",
            "classifier": "head.out",
            "cls.predictions.dense": "head.transform",
            "cls.predictions.LayerNorm": "head.norm",
            "cls.predictions.decoder": "head",
        },
        spare=True,
    ),
}

_ELECTRA: Table = {
    **bert.body("electra"),
    **linear({"electra.embeddings_project": "embedding_projection"}),
    **_CLASSIFIER,
    **linear(
        {
            "generator_predictions.dense": "head.transform",
            "generator_predictions.LayerNorm": "head.norm",
            "generator_lm_head": "head",
        },
        spare=True,
    ),
    # Which tokens were replaced: the task of pre-training.
    "discriminator_predictions.*": None,
}

_ALBERT: Table = {
    **bert.embeddings("albert.embeddings"),
    **linear(
        {
            "albert.embeddings.LayerNorm": "embedding_norm",
            "albert.encoder.embedding_hidden_mapping_in": "embedding_projection",
        }
    ),
    **layer(
        "albert.encoder.albert_layer_groups.{}.albert_layers.0.",
        {
            "attention.query": QKV,
            "attention.key": QKV,
            "attention.value": QKV,
            "attention.dense": OUT,
            "attention.LayerNorm": NORM_1,
            "ffn": UP,
            "ffn_output": DOWN,
            "full_layer_layer_norm": NORM_2,
        },
    ),
    **linear(
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
    # Which of two sentences comes first: a task of pre-training alone.
    "sop_classifier.*": None,
}

_MPNET: Table = {
    **without(bert.embeddings("mpnet.embeddings"), "token_type"),
    "mpnet.encoder.relative_attention_bias.weight": Target("position_bias.weight"),
    **linear({"mpnet.embeddings.LayerNorm": "embedding_norm"}),
    **layer(
        "mpnet.encoder.layer.{}.",
        {
            **qkv("attention.attn.{}"),
            "attention.attn.o": OUT,
            "attention.LayerNorm": NORM_1,
            "intermediate.dense": UP,
            "output.dense": DOWN,
            "output.LayerNorm": NORM_2,
        },
    ),
    **bert.roberta_heads("mpnet"),
}

_DISTILBERT: Table = {
    **without(bert.embeddings("distilbert.embeddings"), "token_type"),
    **linear({"distilbert.embeddings.LayerNorm": "embedding_norm"}),
    **layer(
        "distilbert.transformer.layer.{}.",
        {
            **qkv("attention.{}_lin"),
            "attention.out_lin": OUT,
            "sa_layer_norm": NORM_1,
            "ffn.lin1": UP,
            "ffn.lin2": DOWN,
            "output_layer_norm": NORM_2,
        },
    ),
    **linear(
        {
            "vocab_transform": "head.transform",
            "vocab_layer_norm": "head.norm",
            "vocab_projector": "head",
            "pre_classifier": "head.dense",
            "classifier": "head.out",
        },
        spare=True,
    ),
}

FAMILIES: dict[str, Family[EncoderConfig]] = {
    "big_bird": Family(
        config=_big_bird, weights=with_token_heads(_BIG_BIRD), base_model_prefix="bert"
    ),
    "rembert": Family(
        config=_rembert, weights=with_token_heads(_REMBERT), base_model_prefix="rembert"
    ),
    "roformer": Family(
        config=_roformer, weights=with_token_heads(_ROFORMER), base_model_prefix="roformer"
    ),
    "electra": Family(
        config=_electra, weights=with_token_heads(_ELECTRA), base_model_prefix="electra"
    ),
    "albert": Family(config=_albert, weights=with_token_heads(_ALBERT), base_model_prefix="albert"),
    "mpnet": Family(config=_mpnet, weights=with_token_heads(_MPNET), base_model_prefix="mpnet"),
    "distilbert": Family(
        config=_distilbert,
        weights=with_token_heads(_DISTILBERT),
        base_model_prefix="distilbert",
    ),
}
