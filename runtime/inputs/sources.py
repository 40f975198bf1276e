"""Chooses the reader of what an encoder reads."""

from collections.abc import Callable, Mapping
from typing import Any

from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.sources import (
    AudioSource,
    ChunkedSource,
    ImageSource,
    PatchSource,
    WaveSource,
)
from ortolan.runtime.inputs.image_source import ImageReader, PatchReader
from ortolan.runtime.inputs.sound_source import ChunkReader, MelReader, WaveReader
from ortolan.runtime.inputs.source import SourceReader
from ortolan.runtime.inputs.text_source import TextReader
from ortolan.runtime.inputs.tokenizer import Tokenizer

_READERS: Mapping[type, Callable[[Manifest, Any], SourceReader]] = {
    ImageSource: ImageReader,
    PatchSource: PatchReader,
    AudioSource: MelReader,
    WaveSource: WaveReader,
    ChunkedSource: ChunkReader,
}


def source_of(manifest: Manifest, tokenizer: Tokenizer | None) -> SourceReader:
    """Return the reader of the inputs of a bundle's encoder."""
    reader = _READERS.get(type(manifest.source))
    if reader is not None:
        return reader(manifest, manifest.source)
    return TextReader(manifest, tokenizer)
