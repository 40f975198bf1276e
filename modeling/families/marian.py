"""Marian (Junczys-Dowmunt et al. 2018): the translator of "Attention Is All You Need"."""

from ortolan.modeling.config import EncoderDecoderConfig, SinusoidalPositions, TokenInput
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import bart
from ortolan.modeling.families.reader import ConfigReader

MARIAN = bart.BartLike(
    model_type="marian",
    classes="Marian",
    positions=SinusoidalPositions(layout="halves"),
    normed_embedding=False,
    head="MTModel",
)

BASE_MODEL_PREFIX, WEIGHTS = MARIAN.BASE_MODEL_PREFIX, MARIAN.WEIGHTS


def config(hf: ConfigReader) -> EncoderDecoderConfig:
    """A `MarianConfig` of Hugging Face as an `EncoderDecoderConfig`.

    Raises:
        ConfigError: two vocabularies for one table.
    """
    vocab_size = hf.size("vocab_size")
    target_size = hf.size("decoder_vocab_size", vocab_size)
    shared = hf.get("share_encoder_decoder_embeddings", bool, True)
    if shared and target_size != vocab_size:
        raise ConfigError(
            f"config.json: expected one vocabulary for a shared embedding, got {vocab_size} "
            f"and {target_size}. Correct decoder_vocab_size."
        )
    return MARIAN.read(hf, decoder_vocab_size=None if shared else target_size)


def hf_config(config: EncoderDecoderConfig) -> dict[str, object]:
    """The `config.json` of a Marian model that computes what `config` says."""
    values = MARIAN.hf_config(config)
    source = config.encoder.input
    if isinstance(source, TokenInput):
        values["vocab_size"] = source.vocab_size
    return values | {
        "decoder_vocab_size": config.decoder.vocab_size,
        "share_encoder_decoder_embeddings": config.shared_embedding,
    }
