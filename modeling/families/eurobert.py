"""EuroBERT (Boizard et al. 2025): Llama that sees both sides."""

from ortolan.modeling.config import (
    EncoderConfig,
    Head,
    LanguageModelHead,
    Pooling,
    as_encoder,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import bert, llama
from ortolan.modeling.families.classifier import read_classifier
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.weights import Table, Target

BASE_MODEL_PREFIX = "model"

BASE, MASKED, CLASSIFIER = (
    f"EuroBert{kind}" for kind in ("Model", "ForMaskedLM", "ForSequenceClassification")
)

POOLINGS: dict[str, Pooling] = {"bos": "first", "mean": "mean"}

WEIGHTS: Table = {
    **llama.WEIGHTS,
    "lm_head.weight": Target("head.weight", spare=True),
    "lm_head.bias": Target("head.bias", spare=True),
    **bert.linear({"dense": "head.dense", "classifier": "head.out"}, spare=True),
}


def config(hf: ConfigReader) -> EncoderConfig:
    """A `EuroBertConfig` of Hugging Face as an `EncoderConfig`.

    Raises:
        ConfigError: a pooling that Ortolan does not have.
    """
    hf.skip("mask_token_id", "classifier_dropout")
    architecture = hf.architecture(BASE, MASKED, CLASSIFIER)
    bias = hf.get("attention_bias", bool, False)
    # Of the logits, too.
    mlp_bias = hf.get("mlp_bias", bool, False)
    read = llama.llama_like(
        hf,
        model_type="eurobert",
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=mlp_bias,
        eps=1e-5,
    )
    pooling = hf.get("classifier_pooling", str, "late")
    head: Head | None = None
    if architecture == MASKED:
        head = LanguageModelHead(tied=read.tied_head, bias=mlp_bias)
    elif architecture == CLASSIFIER and pooling not in POOLINGS:
        raise ConfigError(
            f"{hf.name}: expected classifier_pooling to be {' or '.join(POOLINGS)}, got "
            f"{pooling!r:.40}. This checkpoint cannot be loaded faithfully."
        )
    elif architecture == CLASSIFIER:
        head = read_classifier(hf, pooling=POOLINGS[pooling], activation="gelu")
    return as_encoder(read, causal=False, head=head)
