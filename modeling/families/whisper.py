"""Whisper (Radford et al. 2023): an encoder of log-mel spectrograms, and a decoder of text."""

from ortolan.modeling.config import (
    AudioInput,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    LearnedPositions,
)
from ortolan.modeling.families.bart import BODY, NORM, read_blocks
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.tables import linear, without
from ortolan.modeling.weights import Table, Target

FRAMES_PER_POSITION = 2
"""Stride of the second convolution."""

_WEIGHTS: Table = {
    **{
        name: entry._replace(zeros=name.endswith("k_proj.bias"))
        for name, entry in without(
            BODY, "shared", "encoder.embed_tokens", "lm_head", "final_logits"
        ).items()
        if isinstance(entry, Target)
    },
    **{
        f"model.{side}.embed_positions.weight": Target(f"{side}.position_embedding.weight")
        for side in ("encoder", "decoder")
    },
    **linear(
        {
            "model.encoder.conv1": "encoder.embedding.conv1",
            "model.encoder.conv2": "encoder.embedding.conv2",
            "model.encoder.layer_norm": "encoder.final_norm",
            "model.decoder.layer_norm": "decoder.final_norm",
        }
    ),
    "proj_out.weight": Target("decoder.head.weight"),
}


def _whisper(hf: ConfigReader) -> EncoderDecoderConfig:
    hf.architecture("WhisperForConditionalGeneration")
    hf.require("tie_word_embeddings")
    hf.require("is_encoder_decoder")
    # The model stores this switch and never reads it.
    hf.skip("scale_embedding", "num_hidden_layers", "median_filter_width")
    # Of classifiers, and of training.
    hf.skip("use_weighted_layer_sum", "classifier_proj_size", "apply_spec_augment")
    hf.skip(
        *(f"mask_{axis}_{key}" for axis in ("time", "feature") for key in ("prob", "length")),
        *(f"mask_{axis}_min_masks" for axis in ("time", "feature")),
    )
    model_type, width = hf.get("model_type", str), hf.size("d_model")
    positions = hf.size("max_source_positions", 1500)
    encoder = EncoderConfig(
        model_type=model_type,
        input=AudioInput(bins=hf.size("num_mel_bins", 80), frames=FRAMES_PER_POSITION * positions),
        hidden_size=width,
        context_length=positions,
        positions=LearnedPositions(),
        blocks=read_blocks(hf, "encoder", width, "pre"),
        final_norm=NORM,
    )
    decoder = DecoderConfig(
        model_type=model_type,
        vocab_size=hf.size("vocab_size"),
        hidden_size=width,
        context_length=hf.size("max_target_positions", 448),
        positions=LearnedPositions(),
        blocks=read_blocks(hf, "decoder", width, "pre"),
        final_norm=NORM,
        tied_head=True,
    )
    return EncoderDecoderConfig(
        **hf.model_fields(),
        encoder=encoder,
        decoder=decoder,
        shared_embedding=False,
        decoder_start_token_id=hf.get("decoder_start_token_id", int),
    )


FAMILIES: dict[str, Family[EncoderDecoderConfig]] = {
    "whisper": Family(config=_whisper, weights=_WEIGHTS)
}
