"""EuroBERT (Boizard et al. 2025): Llama that attends to both sides."""

from dataclasses import replace

from ortolan.modeling.config import EncoderConfig, HeadLayer, LanguageModelHead, Pooling, as_encoder
from ortolan.modeling.families import llama
from ortolan.modeling.families.classifier import read_head
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.norms import rms
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.tables import linear
from ortolan.modeling.weights import Table

POOLINGS: dict[str, Pooling] = {"bos": "first", "mean": "mean"}

_WEIGHTS: Table = {
    **llama.WEIGHTS,
    **linear({"lm_head": "head", "dense": "head.dense", "classifier": "head.out"}, spare=True),
}


def _config(hf: ConfigReader) -> EncoderConfig:
    hf.skip("mask_token_id", "classifier_dropout")
    config = replace(llama.LLAMA, norm=rms(1e-5)).read(hf)
    # The logits are biased with the MLP.
    language_model = LanguageModelHead(tied=config.tied_head, bias=config.blocks[0].dense.bias)
    head = read_head(
        hf,
        "EuroBert",
        language_model,
        pooling=hf.get("classifier_pooling", str, "late"),
        poolings=POOLINGS,
        layer=HeadLayer(activation="gelu"),
    )
    return as_encoder(config, causal=False, head=head)


FAMILIES: dict[str, Family[EncoderConfig]] = {"eurobert": Family(config=_config, weights=_WEIGHTS)}
