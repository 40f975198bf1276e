"""ELECTRA (Clark et al. 2020): BERT whose embeddings may be narrower than its stream."""

from dataclasses import replace

from ortolan.modeling.config import EncoderConfig, Head, LanguageModelHead
from ortolan.modeling.families import bert
from ortolan.modeling.families.classifier import read_classifier
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.weights import Table, Target

BASE_MODEL_PREFIX = "electra"

BASE, MASKED, CLASSIFIER = (
    f"Electra{kind}" for kind in ("Model", "ForMaskedLM", "ForSequenceClassification")
)

WEIGHTS: Table = {
    **bert.body("electra"),
    **bert.linear({"electra.embeddings_project": "embedding_projection"}),
    **bert.linear(
        {
            "generator_predictions.dense": "head.transform",
            "generator_predictions.LayerNorm": "head.norm",
            "classifier.dense": "head.dense",
            "classifier.out_proj": "head.out",
        },
        spare=True,
    ),
    "generator_lm_head.bias": Target("head.bias", spare=True),
    "generator_lm_head.weight": Target("head.weight", spare=True),
    # Which tokens were replaced: the task of the pre-training.
    "discriminator_predictions.*": None,
}


def config(hf: ConfigReader) -> EncoderConfig:
    """An `ElectraConfig` of Hugging Face as an `EncoderConfig`."""
    # Of heads that are not served.
    hf.skip("summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj")
    architecture = hf.architecture(BASE, MASKED, CLASSIFIER)
    read = bert.bert_like(hf, model_type="electra", offset=0, head=None)
    narrow = hf.size("embedding_size", 128)
    head: Head | None = None
    if architecture == CLASSIFIER:
        head = read_classifier(hf, pooling="first", activation="gelu")
    elif architecture == MASKED:
        norm = read.blocks[0].norm
        head = LanguageModelHead(tied=True, bias=True, activation="gelu", norm=norm, width=narrow)
    embedding_dim = None if narrow == read.hidden_size else narrow
    return replace(read, embedding_dim=embedding_dim, head=head)
