"""DistilBERT (Sanh et al. 2019): BERT without types of tokens, under names of its own."""

from ortolan.modeling.config import (
    EncoderConfig,
    Head,
    LanguageModelHead,
    LearnedPositions,
    NormConfig,
    TokenInput,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import bert
from ortolan.modeling.families.activations import read_activation, write_activation
from ortolan.modeling.families.classifier import read_classifier
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Table, Target

BASE_MODEL_PREFIX = "distilbert"

BASE, MASKED = "DistilBertModel", "DistilBertForMaskedLM"
CLASSIFIER = "DistilBertForSequenceClassification"

NORM = NormConfig(kind="layer", eps=1e-12)

_LAYER = "distilbert.transformer.layer.{}"

WEIGHTS: Table = {
    "distilbert.embeddings.word_embeddings.weight": Target("embedding.weight"),
    "distilbert.embeddings.position_embeddings.weight": Target("position_embedding.weight"),
    # Counted numbers that old versions of transformers saved.
    "distilbert.embeddings.position_ids": None,
    **bert.linear(
        {
            "distilbert.embeddings.LayerNorm": "embedding_norm",
            f"{_LAYER}.attention.q_lin": "blocks.{}.attention.qkv",
            f"{_LAYER}.attention.k_lin": "blocks.{}.attention.qkv",
            f"{_LAYER}.attention.v_lin": "blocks.{}.attention.qkv",
            f"{_LAYER}.attention.out_lin": "blocks.{}.attention.out",
            f"{_LAYER}.sa_layer_norm": "blocks.{}.attention_norm",
            f"{_LAYER}.ffn.lin1": "blocks.{}.feed_forward.up",
            f"{_LAYER}.ffn.lin2": "blocks.{}.feed_forward.down",
            f"{_LAYER}.output_layer_norm": "blocks.{}.feed_forward_norm",
        }
    ),
    **bert.linear(
        {
            "vocab_transform": "head.transform",
            "vocab_layer_norm": "head.norm",
            "pre_classifier": "head.dense",
            "classifier": "head.out",
        },
        spare=True,
    ),
    "vocab_projector.bias": Target("head.bias", spare=True),
    "vocab_projector.weight": Target("head.weight", spare=True),
}


def config(hf: ConfigReader) -> EncoderConfig:
    """A `DistilBertConfig` of Hugging Face as an `EncoderConfig`.

    Raises:
        ConfigError: widths that do not fit.
    """
    hf.skip("dropout", "qa_dropout", "seq_classif_dropout", "tie_word_embeddings")
    # Only how the table began: the checkpoint holds it either way.
    hf.skip("sinusoidal_pos_embds", "tie_weights_")
    activation = hf.get("activation", str, "gelu")
    head: Head | None = None
    architecture = hf.architecture(BASE, MASKED, CLASSIFIER)
    if architecture == CLASSIFIER:
        head = read_classifier(hf, pooling="first", activation="relu")
    elif architecture == MASKED:
        tied = hf.get("tie_word_embeddings", bool, True)
        head = LanguageModelHead(
            tied=tied, bias=True, activation=read_activation(activation), norm=NORM
        )
    width, heads = hf.size("dim"), hf.size("n_heads")
    if width % heads:
        raise ConfigError(
            f"config.json: expected dim divisible by n_heads, got {width} and {heads}. "
            "Correct one of them."
        )
    block = bert.encoder_block(
        width=width, heads=heads, hidden=hf.size("hidden_dim"), activation=activation, norm=NORM
    )
    return EncoderConfig(
        model_type="distilbert",
        input=TokenInput(vocab_size=hf.size("vocab_size")),
        hidden_size=width,
        context_length=hf.size("max_position_embeddings"),
        positions=LearnedPositions(),
        embedding_norm=NORM,
        blocks=(block,) * hf.size("n_layers", most=MAX_LAYERS),
        final_norm=None,
        head=head,
        bos_token_id=hf.get("bos_token_id", int, None),
        eos_token_ids=hf.token_ids("eos_token_id"),
        pad_token_id=hf.get("pad_token_id", int, None),
    )


def hf_config(config: EncoderConfig) -> dict[str, object]:
    """The `config.json` of a DistilBERT that computes what `config` says.

    Raises:
        ConfigError: an input or positions that the format does not have.
    """
    values = bert.bert_like_hf_config(config, BASE, MASKED, CLASSIFIER)
    kept = {"model_type", "vocab_size", "max_position_embeddings", "architectures"}
    kept |= {"tie_word_embeddings", "id2label", "label2id", "problem_type"}
    kept |= {f"{kind}_token_id" for kind in ("bos", "eos", "pad")}
    first = config.blocks[0]
    return {key: value for key, value in values.items() if key in kept} | {
        "dim": config.hidden_size,
        "hidden_dim": first.dense.intermediate_size,
        "n_layers": len(config.blocks),
        "n_heads": first.attention.num_heads,
        "activation": write_activation(first.dense.activation),
    }
