"""Marian (Junczys-Dowmunt et al. 2018): the translator of "Attention Is All You Need"."""

from ortolan.modeling.config import EncoderDecoderConfig, SinusoidalPositions, TokenInput
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import bart
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.weights import Table

BASE_MODEL_PREFIX = bart.BASE_MODEL_PREFIX

BASE, SEQ2SEQ = "MarianModel", "MarianMTModel"

WEIGHTS: Table = {
    **bart.BODY,
    # Fixed tables, which follow from the config.
    "model.encoder.embed_positions.weight": None,
    "model.decoder.embed_positions.weight": None,
}


def config(hf: ConfigReader) -> EncoderDecoderConfig:
    """A `MarianConfig` of Hugging Face as an `EncoderDecoderConfig`.

    Raises:
        ConfigError: two vocabularies for one table.
    """
    hf.refuse("normalize_embedding")
    hf.require("static_position_embeddings")
    vocab_size = hf.size("vocab_size")
    target_size = hf.size("decoder_vocab_size", vocab_size)
    shared = hf.get("share_encoder_decoder_embeddings", bool, True)
    if shared and target_size != vocab_size:
        raise ConfigError(
            f"config.json: expected one vocabulary for a shared embedding, got {vocab_size} "
            f"and {target_size}. Correct decoder_vocab_size."
        )
    return bart.bart_like(
        hf,
        model_type="marian",
        base=BASE,
        seq2seq=SEQ2SEQ,
        positions=SinusoidalPositions(layout="halves"),
        embedding_norm=None,
        decoder_vocab_size=None if shared else target_size,
    )


def hf_config(config: EncoderDecoderConfig) -> dict[str, object]:
    """The `config.json` of a Marian model that computes what `config` says."""
    values = bart.bart_like_hf_config(config, base=BASE, seq2seq=SEQ2SEQ)
    source = config.encoder.input
    if isinstance(source, TokenInput):
        values["vocab_size"] = source.vocab_size
    return values | {
        "decoder_vocab_size": config.decoder.vocab_size,
        "share_encoder_decoder_embeddings": config.shared_embedding,
    }
