"""What a model of a family reads and returns."""

from pathlib import Path

from ortolan.export.source.audio_preprocessing import audio_source, chunked_source, wave_source
from ortolan.export.source.image_processor import Processor
from ortolan.export.source.patches import patch_source
from ortolan.export.source.preprocessing import image_source
from ortolan.export.trace.encoder import token_types
from ortolan.export.trace.sides import Sides
from ortolan.modeling.checkpoint.sentence_head import Prompts, read_prompts
from ortolan.modeling.config import (
    AudioInput,
    ChunkedAudioInput,
    ClassifierHead,
    CtcHead,
    EmbeddingHead,
    EncoderConfig,
    FeatureHead,
    GridInput,
    LanguageModelHead,
    PatchInput,
    TokenInput,
    WaveInput,
)
from ortolan.runtime.bundle.kinds import OUTPUTS
from ortolan.runtime.bundle.manifest import Output, Source
from ortolan.runtime.bundle.text_source import TextSource


def source_of(
    sides: Sides, folder: Path | None, processor: Processor | None, *, padding: int | None
) -> Source | None:
    """What an encoder reads; None for a decoder alone."""
    if sides.encoder is None:
        return None
    match sides.encoder.input, processor:
        case PatchInput() as patches, Processor():
            return image_source(patches, processor)
        case GridInput(), Processor():
            return patch_source(sides.encoder, processor)
        case AudioInput() as spectrogram, _:
            return audio_source(spectrogram, folder)
        case ChunkedAudioInput() as chunked, _:
            return chunked_source(chunked, folder)
        case WaveInput() as wave, _:
            return wave_source(wave, folder, vectors=sides.encoder.context_length)
    own = sides.source_vocab_size
    is_embedding = isinstance(sides.encoder.head, EmbeddingHead)
    prompts = read_prompts(folder) if folder and is_embedding else Prompts()
    return TextSource(
        max_tokens=sides.encoder.context_length,
        vocab_size=None if own == sides.vocab_size else own,
        prompts=prompts.texts,
        default_prompt=prompts.default,
        pairs=_reads_pairs(sides.encoder),
        types=token_types(sides.encoder),
        padding=padding,
    )


def _reads_pairs(encoder: EncoderConfig) -> bool:
    """Whether it classifies texts without regard to token types."""
    is_for_pairs = isinstance(encoder.head, ClassifierHead) and encoder.head.reads_pairs
    return is_for_pairs and isinstance(encoder.input, TokenInput) and token_types(encoder) <= 1


def output_of(encoder: EncoderConfig, symbols: tuple[str, ...]) -> Output:
    """What an encoder alone returns."""
    match encoder.head:
        case CtcHead(size=size):
            return Output(kind="ctc", size=size, labels=symbols)
        case ClassifierHead(labels=labels) as head:
            return Output(kind=_kind(head), size=len(labels), labels=labels)
        case LanguageModelHead():
            return Output(kind="logits", size=Sides(encoder=encoder).vocab_size)
        case EmbeddingHead() as head:
            return Output(kind="embedding", size=head.width(encoder.hidden_size))
        case FeatureHead() as head:
            return Output(kind="states", size=head.width)
        case _:
            return Output(kind="states", size=encoder.hidden_size)


def _kind(head: ClassifierHead) -> str:
    """The kind of output with the head's function; the softmax of one label is a sigmoid."""
    by_token = head.pooling is None
    function = "softmax" if (len(head.labels), head.scores) == (1, "sigmoid") else head.scores
    return next(
        kind.name
        for kind in OUTPUTS.values()
        if (kind.scores, kind.by_token) == (function, by_token)
    )
