"""Prepares texts, token ids, images and sounds for an encoder."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import checked_flag
from ortolan.runtime.bundle.interface import (
    COLUMN_WEIGHTS,
    IDS,
    LENGTHS,
    MEL,
    PATCHES,
    PIXELS,
    POSITIONS,
    ROW_WEIGHTS,
    TYPES,
    WAVE,
)
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.sources import (
    AudioSource,
    ChunkedSource,
    ImageSource,
    PatchSource,
    TextSource,
    WaveSource,
)
from ortolan.runtime.errors import ContextLengthError, InputError, TokenizerError, shown
from ortolan.runtime.inputs.audio import Sound, read_chunks, read_parts, read_wave
from ortolan.runtime.inputs.ids import checked_ids
from ortolan.runtime.inputs.images import Image, read_pixels
from ortolan.runtime.inputs.patches import flat_patches, read_whole
from ortolan.runtime.inputs.tokenizer import PairWindow, Tokenizer, TokenSpan, no_tokenizer

Input = str | tuple[str, str] | Sequence[int] | NDArray[np.integer[Any]] | Image | Sound
"""A text, two texts, or token ids; or an image as a path, bytes or pixels; or a sound as a path,
bytes or samples."""

Inputs = Input | Sequence[Input]
"""One input or several."""

Source = list[int] | NDArray[np.float32]
"""A text as token ids, an image as pixels `(channels, height, width)`, or a sound as a spectrogram
`(bins, frames)` or a wave `(samples,)`."""


_MEDIA: Mapping[type, str] = {ImageSource: PIXELS, AudioSource: MEL, WaveSource: WAVE}
"""Graph input of sources other than texts."""


class TypedIds(list[int]):
    """Token ids of a pair of texts, for an encoder that reads the type of each token."""

    def __init__(self, ids: Sequence[int], types: Sequence[int]) -> None:
        super().__init__(ids)
        self.types = types


class SpannedIds(list[int]):
    """Token ids of a text, with the characters of each token."""

    def __init__(self, text: str, ids: Sequence[int], spans: Sequence[TokenSpan | None]) -> None:
        super().__init__(ids)
        self.text = text
        self.spans = spans


class WindowIds(TypedIds):
    """Token ids of a question and of a part of its context."""

    def __init__(self, window: PairWindow) -> None:
        super().__init__(window.ids, window.types)
        self.words = window.words


class SourceReader:
    """Reads inputs for the encoder of a bundle. Threads may share it.

    Attributes:
        max_tokens: maximum number of tokens of a text.
    """

    def __init__(self, manifest: Manifest, tokenizer: Tokenizer | None) -> None:
        self._manifest = manifest
        self._tokenizer = tokenizer
        # tokens around a text, such as [CLS] and [SEP]
        self._added = 0 if tokenizer is None else len(tokenizer.encode(""))
        self._vocab_size = manifest.vocab_size
        self._types = 1
        match manifest.source:
            case TextSource(max_tokens=limit, vocab_size=own):
                self.max_tokens = limit
                self._vocab_size = manifest.vocab_size if own is None else own
                self._types = manifest.source.token_types
            case _:
                self.max_tokens = manifest.context_length

    def read(self, value: Any, *, truncate: bool = False) -> Source:
        """Return one input as token ids, pixels, a spectrogram or a wave."""
        truncate = self.checked_truncate(truncate)
        source = self._manifest.source
        if isinstance(source, ImageSource):
            return read_pixels(value, source)
        if isinstance(source, PatchSource):
            return read_whole(value, source)
        if isinstance(source, AudioSource):
            return _only(read_chunks(value, source), source)
        if isinstance(source, WaveSource):
            return read_wave(value, source)
        if isinstance(source, ChunkedSource):
            return _only_part(read_parts(value, source), source)
        if isinstance(value, str):
            ids = self._encode(value, truncate=truncate)
        elif _is_pair(value):
            ids = self._encode_pair(value, truncate=truncate)
        else:
            ids = checked_ids(value, vocab_size=self._vocab_size, what="ids", fewest=1)
            ids = ids[: self.max_tokens] if truncate else ids
        return self._filled(self._checked_length(ids))

    def read_spans(self, value: Any, *, truncate: bool = False) -> Source:
        """Return a text as token ids that know their characters; same errors as `read`."""
        truncate = self.checked_truncate(truncate)
        if not isinstance(value, str):
            raise InputError(
                f"Labels of tokens need a text, whose characters they name (got {shown(value)})."
            )
        if self._tokenizer is None:
            raise no_tokenizer("text")
        most = self.max_tokens if truncate else None
        if not truncate:
            self._tokenizer.check_length(value, self.max_tokens)
        ids, spans = self._tokenizer.encode_spans(value, max_tokens=most)
        if not any(spans):
            raise _no_tokens(value)
        return self._checked_length(SpannedIds(value, ids, spans))

    def read_windows(
        self, question: str, context: str, *, max_tokens: int, stride: int
    ) -> list[WindowIds]:
        """Return a question with each part of its context."""
        if self._tokenizer is None:
            raise no_tokenizer("question and context")
        windows = self._tokenizer.pair_windows(
            question, context, max_tokens=max_tokens, stride=stride
        )
        if not any(windows[0].words):
            raise _no_tokens(context)
        self._check_types(windows[0].types)
        return [WindowIds(window) for window in windows]

    def _checked_length(self, ids: list[int]) -> list[int]:
        if len(ids) > self.max_tokens:
            raise ContextLengthError(
                f"The input has {len(ids)} tokens, and the limit is {self.max_tokens}. Split it, "
                "or with an Encoder pass truncate=True."
            )
        return ids

    def _filled(self, ids: list[int]) -> list[int]:
        """Ids with the padding that the encoder reads, if it does."""
        source = self._manifest.source
        filler = source.filler if isinstance(source, TextSource) else None
        return ids if filler is None else ids + [filler] * (self.max_tokens - len(ids))

    def checked_truncate(self, truncate: bool) -> bool:
        """Return the flag if it applies to this encoder; or InputError."""
        truncate = checked_flag("truncate", truncate)
        source = self._manifest.source
        if truncate and not isinstance(source, TextSource | None):
            raise InputError(f"truncate is for texts, and this encoder reads {source.words}.")
        return truncate

    def calls(self, batch: Sequence[Source]) -> list[dict[str, NDArray[Any]]]:
        """Return graph inputs for a batch of sources: one call, or one for each wave or image.

        Waves and images of any size are not padded, so that the encoder sees nothing else.
        """
        one_by_one = isinstance(self._manifest.source, WaveSource | ChunkedSource | PatchSource)
        return [self.feeds([source]) for source in batch] if one_by_one else [self.feeds(batch)]

    def feeds(self, batch: Sequence[Source]) -> dict[str, NDArray[Any]]:
        """Return graph inputs for a batch of sources; texts are padded on the right."""
        source = self._manifest.source
        if isinstance(source, ChunkedSource):
            (mel_MF,) = batch
            return part_feeds(np.asarray(mel_MF, np.float32), source)
        if isinstance(source, PatchSource):
            (pixels_CHW,) = batch
            return patch_feeds(np.asarray(pixels_CHW, np.float32), source)
        name = _MEDIA.get(type(source))
        if name is not None:
            return {name: np.stack([np.asarray(values, np.float32) for values in batch])}
        texts = pad(batch, padding=self._manifest.tokens.pad or 0)
        if self._types > 1:
            types = [ids.types if isinstance(ids, TypedIds) else [0] * len(ids) for ids in batch]
            texts[TYPES] = pad(types, padding=0)[IDS]
        return texts

    def _encode(self, text: str, *, truncate: bool) -> list[int]:
        if self._tokenizer is None:
            raise no_tokenizer("text")
        if truncate:
            ids = self._tokenizer.encode_start(text, max_tokens=self.max_tokens)
        else:
            self._tokenizer.check_length(text, self.max_tokens)
            ids = self._tokenizer.encode(text)
        if len(ids) <= self._added:
            raise _no_tokens(text)
        return ids

    def _encode_pair(self, texts: tuple[str, str], *, truncate: bool) -> list[int]:
        if self._tokenizer is None:
            raise no_tokenizer("pairs of texts")
        source = self._manifest.source
        most = self.max_tokens if truncate else None
        if not truncate:
            for text in texts:
                self._tokenizer.check_length(text, self.max_tokens)
        if self._types == 1:
            has_types = not (isinstance(source, TextSource) and source.pairs)
            return self._tokenizer.encode_pair(*texts, max_tokens=most, has_types=has_types)
        ids, types = self._tokenizer.encode_typed_pair(*texts, max_tokens=most)
        self._check_types(types)
        return TypedIds(ids, types)

    def _check_types(self, types: Sequence[int]) -> None:
        if self._types > 1 and max(types) >= self._types:
            raise TokenizerError(
                f"The tokenizer marks a token of the pair with type {max(types)}, and the model "
                f"has types up to {self._types - 1}. tokenizer.json belongs to another model."
            )


def _only(chunks_KMF: NDArray[np.float32], source: AudioSource) -> NDArray[np.float32]:
    """The spectrogram of a sound that has one."""
    if len(chunks_KMF) > 1:
        raise ContextLengthError(
            f"The encoder reads sounds of at most {source.seconds:g} seconds. Split it, or call "
            "`transcribe`."
        )
    chunk_MF: NDArray[np.float32] = chunks_KMF[0]
    return chunk_MF


def _only_part(parts: Sequence[NDArray[np.float32]], source: ChunkedSource) -> NDArray[np.float32]:
    """The only part of a sound that has one."""
    if len(parts) > 1:
        raise ContextLengthError(
            f"The encoder reads sounds of at most {source.seconds:g} seconds. Split it."
        )
    return parts[0]


def _no_tokens(text: str) -> InputError:
    return InputError(f"The text {text[:40]!r} has no tokens. Leave it out.")


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and all(isinstance(text, str) for text in value)
    )


def has_parts(prompt: Any) -> bool:
    """Whether a prompt is a list of texts and images, which are mappings."""
    return isinstance(prompt, list | tuple) and any(isinstance(part, Mapping) for part in prompt)


def is_batch(inputs: Any) -> bool:
    """Whether inputs are a list or tuple of inputs, rather than one of token ids or parts."""
    if not isinstance(inputs, list | tuple) or has_parts(inputs):
        return False
    return len(inputs) == 0 or not isinstance(inputs[0], int | np.integer)


def as_list(inputs: Any) -> list[Any]:
    """The inputs of a batch, or one input as a batch."""
    return list(inputs) if is_batch(inputs) else [inputs]


def part_feeds(features_MF: NDArray[np.float32], source: ChunkedSource) -> dict[str, NDArray[Any]]:
    """Return the graph inputs of a part: its chunks `(K, bins, chunk)`, and its vectors `(1,)`."""
    frames = features_MF.shape[1]
    padded_MF = np.pad(features_MF, ((0, 0), (0, -frames % source.chunk)))
    chunks_MKF = padded_MF.reshape(source.bins, -1, source.chunk)
    return {
        MEL: np.ascontiguousarray(chunks_MKF.swapaxes(0, 1)),
        LENGTHS: np.array([source.length(frames)], np.int32),
    }


def patch_feeds(pixels_CHW: NDArray[np.float32], source: PatchSource) -> dict[str, NDArray[Any]]:
    """Return the graph inputs of an image that keeps its proportions."""
    image = flat_patches(pixels_CHW, source)
    values = {
        PATCHES: image.patches,
        ROW_WEIGHTS: image.rows,
        COLUMN_WEIGHTS: image.columns,
        POSITIONS: image.positions,
    }
    return {name: array for name, array in values.items() if array is not None}


def pad(rows: Sequence[Any], *, padding: int) -> dict[str, NDArray[Any]]:
    """Return ids of any lengths as `input_ids` int64 `(B, T)` and `lengths` int32 `(B,)`."""
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    padded = [[*row, *[padding] * (longest - len(row))] for row in rows]
    return {IDS: np.array(padded, np.int64), LENGTHS: np.array(lengths, np.int32)}
