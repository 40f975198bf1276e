"""Sources of every kind, from modules with random weights or from folders."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.export import tiny_models
from tests.modeling import kinds
from tests.tiny.tokenizers import of_characters, with_ends
from torch import nn

from ortolan.export.exportable import Exportable
from ortolan.export.options import ExportOptions
from ortolan.export.source import open_exportable
from ortolan.modeling.config import (
    AudioInput,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    Head,
    LearnedPositions,
    PatchInput,
    Positions,
    TokenInput,
)
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.models.transformer import build

LEARNED = LearnedPositions()

Config = DecoderConfig | EncoderConfig | EncoderDecoderConfig


def decoder_config(context: int = 600) -> DecoderConfig:
    return replace(tiny_models.gpt2(), context_length=context)


def encoder_config(positions: Positions = LEARNED, head: Head | None = None) -> EncoderConfig:
    """Texts of at most 20 tokens."""
    words = TokenInput(vocab_size=tiny_models.VOCAB)
    return kinds.encoder_config(positions, input=words, context_length=20, head=head)


def image_config(channels: int = 3, head: Head | None = None) -> EncoderConfig:
    """Images of 9 x 6 pixels."""
    patches = PatchInput(image_size=(9, 6), patch_size=(3, 3), channels=channels, class_token=True)
    length = patches.length
    return kinds.encoder_config(LEARNED, input=patches, context_length=length, head=head)


def seq2seq_config(positions: Positions = LEARNED) -> EncoderDecoderConfig:
    """Sources and targets of at most 40 tokens; a target begins with 2."""
    config = kinds.seq2seq_config(positions)
    words = TokenInput(vocab_size=tiny_models.VOCAB)
    return replace(
        config,
        encoder=replace(config.encoder, input=words),
        decoder=replace(config.decoder, vocab_size=tiny_models.VOCAB),
        decoder_start_token_id=2,
    )


def speech_config() -> EncoderDecoderConfig:
    """Sounds of at most 0.4 seconds; a target begins with 2."""
    config = seq2seq_config()
    sounds = AudioInput(bins=20, frames=40)
    return replace(
        config,
        encoder=replace(config.encoder, input=sounds, context_length=sounds.length),
        shared_embedding=False,
    )


def one_layer(config: Any) -> Any:
    """The same model with one layer per side, since tracing is slow."""
    if isinstance(config, EncoderDecoderConfig):
        sides = one_layer(config.encoder), one_layer(config.decoder)
        return replace(config, encoder=sides[0], decoder=sides[1])
    return replace(config, blocks=config.blocks[:1])


def module_of(config: Config) -> TransformerModel:
    return kinds.randomised(build(config))


def opened(source: nn.Module | Path, max_context: int | None = None) -> Exportable:
    return open_exportable(source, max_context=max_context)


def source_of(config: Config, tokenizer: Path | None = None) -> Exportable:
    return open_exportable(module_of(config), ExportOptions(tokenizer=tokenizer))


def write_plain_tokenizer(folder: Path) -> Path:
    """A tokenizer without special tokens around a text."""
    path = folder / "tokenizer.json"
    of_characters().save(str(path))
    return path


def write_wrapping_tokenizer(folder: Path) -> Path:
    """A tokenizer that puts 1 before a text and 2 after it."""
    path = folder / "tokenizer.json"
    with_ends(of_characters(), "<s> $A </s>").save(str(path))
    return path
