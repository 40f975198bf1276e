"""RoBERTa (Liu et al. 2019): BERT whose positions are counted from the padding id on."""

from ortolan.modeling.config import (
    ClassifierHead,
    EncoderConfig,
    Head,
    LanguageModelHead,
    LearnedPositions,
)
from ortolan.modeling.config.head import NormConfig
from ortolan.modeling.families import bert
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.weights import Table, Target

BASE_MODEL_PREFIX = "roberta"

BASE, MASKED, CLASSIFIER = "RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification"

WEIGHTS: Table = {
    **bert.body("roberta"),
    # The classifier has a layer of its own in its place.
    "roberta.pooler.dense.weight": None,
    "roberta.pooler.dense.bias": None,
    **bert.linear(
        {
            "lm_head.dense": "head.transform",
            "lm_head.layer_norm": "head.norm",
            "classifier.dense": "head.dense",
            "classifier.out_proj": "head.out",
        },
        spare=True,
    ),
    "lm_head.bias": Target("head.bias", spare=True),
    "lm_head.decoder.weight": Target("head.weight", spare=True),
    # A second name of lm_head.bias.
    "lm_head.decoder.bias": None,
}


def config(hf: ConfigReader) -> EncoderConfig:
    """A `RobertaConfig` of Hugging Face as an `EncoderConfig`."""
    head: Head | None = None
    architecture = hf.architecture(BASE, MASKED, CLASSIFIER)
    if architecture == CLASSIFIER:
        head = ClassifierHead(labels=hf.labels(), pooling="first", activation="tanh")
    elif architecture == MASKED:
        head = LanguageModelHead(
            tied=True,
            bias=True,
            # Whatever the layers have.
            activation="gelu",
            norm=NormConfig(kind="layer", eps=hf.get("layer_norm_eps", float, 1e-12)),
        )
    # The rows up to that of the padding id are for padding.
    offset = hf.get("pad_token_id", int, 1) + 1
    return bert.bert_like(hf, model_type="roberta", offset=offset, head=head)


def hf_config(config: EncoderConfig) -> dict[str, object]:
    """The `config.json` of a RoBERTa that computes what `config` says."""
    values = bert.bert_like_hf_config(config, BASE, MASKED, CLASSIFIER)
    if isinstance(config.positions, LearnedPositions):
        values["pad_token_id"] = config.positions.offset - 1
    return values
