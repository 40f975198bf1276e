"""The bundle as its users meet it: loaded through `ortolan.runtime`."""

import math
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from ortolan.export.witness.texts import FILLER, PAIRS, SENTENCES, Reading
from ortolan.runtime.bundle.folder import open_bundle, open_part
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.text_source import TextSource
from ortolan.runtime.chat.chat import Chat
from ortolan.runtime.chat.template import ChatTemplate
from ortolan.runtime.inputs.tokenizer import Tokenizer, open_tokenizer
from ortolan.runtime.loading import load
from ortolan.runtime.verification.certificate import Certificate
from ortolan.runtime.verification.certificate_files import (
    ARRAYS_NAME,
    JSON_NAME,
    decode_certificate,
    read_certificate,
)

FLOAT32 = 2e-4
"""Largest difference between float32 kernels, relative to the largest number of an answer.

Measured: at most 1e-4 over all supported types (`docs/families.md`), and 2e-6 in most of them, for
which `ortolan.export.witness.rounding` has a lower bound."""

TOLERANCE: Mapping[str, float] = {"fp32": FLOAT32, "fp16": 5e-2}
"""By precision. Rounded weights compute other numbers, which the certificate bounds instead."""

POLL_SECONDS = 0.02
"""Time between two looks for a file that the export writes."""


MOST_SPECIAL = 6
"""Special tokens of the vocabulary that are written into a text: padding is among the first."""


class Bundled:
    """A bundle that was just written.

    Attributes:
        bundle: its files.
        has_own_tokenizer: the user passed another tokenizer than the checkpoint's.
        adapter: folder of an adapter for run time, with a certificate.
        first_layers: folder of the certificate of its first layers, where the publisher's model has
            no more; it appears once it is computed.
        windows: see `ortolan.export.witness.brief.Brief`.
    """

    def __init__(self, folder: Path, *, has_own_tokenizer: bool = False) -> None:
        self.bundle = open_bundle(folder)
        self.has_own_tokenizer = has_own_tokenizer
        self.adapter: Path | None = None
        self.first_layers: Path | None = None
        self.windows: tuple[int | None, ...] = ()

    @property
    def manifest(self) -> Manifest:
        """Description of the bundle."""
        return self.bundle.manifest

    @property
    def is_text_encoder(self) -> bool:
        """Whether it is an encoder of texts, with the checkpoint's tokenizer or without one."""
        return self.manifest.kind == "encoder" and isinstance(self.manifest.source, TextSource)

    @property
    def output(self) -> str | None:
        """Kind of the output of an encoder of texts that reads texts on this machine."""
        output = self.manifest.output
        reads = self.is_text_encoder and self.tokenizer is not None
        return output.kind if reads and output and "cpu" in self.manifest.devices else None

    def readings(self, *, most: int) -> Mapping[str, Reading]:
        """Texts for an encoder, and pairs if it classifies them; none without a tokenizer.

        If it reads at most `most` tokens, some are longer than that.
        """
        source, output = self.manifest.source, self.manifest.output
        if self.tokenizer is None or output is None or not isinstance(source, TextSource):
            return {}
        forms: dict[str, tuple[str, ...]] = {name: (text,) for name, text in SENTENCES.items()}
        special = [self.tokenizer.text_of(token) for token in self.tokenizer.special_ids()]
        if special:
            # a model may count positions of others than padding
            forms["special tokens in a text"] = (f"one {' two '.join(special[:MOST_SPECIAL])} ten",)
        long = self.long_text(2 * source.max_tokens)
        cut: dict[str, tuple[str, ...]] = {"a long text": (long,)}
        if output.kind in ("labels", "tags", "scores"):
            forms |= PAIRS
            cut["a pair with a long text"] = FILLER, long
            cut["a pair that begins with a long text"] = long, FILLER
            cut["a pair of long texts"] = long, long
        if source.max_tokens <= most:
            forms |= cut
        return {
            name: Reading(texts=texts, is_long=name in cut, is_padded=source.padding is not None)
            for name, texts in forms.items()
        }

    def long_text(self, tokens: int) -> str:
        """A text of at least this number of tokens."""
        assert self.tokenizer is not None
        own = self.tokenizer.encode(FILLER, add_special_tokens=False)
        return FILLER * (tokens // max(len(own), 1) + 1)

    @property
    def tolerance(self) -> float:
        """Largest difference of numbers that the precision explains."""
        return TOLERANCE.get(self.manifest.precision, math.inf)

    @property
    def has_exact_numbers(self) -> bool:
        """Whether its numbers can be compared with those of the trained model."""
        has_rounded_cache = any(state.dtype == "int8" for state in self.manifest.states)
        is_exact = self.manifest.precision == "fp32" and not has_rounded_cache
        # the certificate compares what an adapter changes at run time
        return is_exact and "cpu" in self.manifest.devices and self.adapter is None

    @cached_property
    def certificate(self) -> Certificate:
        """Its certificate, whose reference our readers and PyTorch computed."""
        return read_certificate(self.bundle) if self.adapter is None else self._read(self.adapter)

    @property
    def weight_bytes(self) -> int:
        """Size of its weights in memory."""
        files = self.manifest.files
        return sum(file.size for file in files if file.name in self.manifest.weights)

    @property
    def reference(self) -> Certificate:
        """The certificate, or that of as many layers as the publisher's model has."""
        return self.certificate if self.first_layers is None else self._certificate_of_layers

    @cached_property
    def _certificate_of_layers(self) -> Certificate:
        folder = self.first_layers
        assert folder is not None
        while not folder.exists():  # the export ends this process if it takes too long
            time.sleep(POLL_SECONDS)
        return self._read(folder)

    def _read(self, folder: Path) -> Certificate:
        data, arrays = (folder / JSON_NAME).read_bytes(), folder / ARRAYS_NAME
        return decode_certificate(data, arrays.read_bytes, self.manifest)

    @cached_property
    def reads(self) -> Any:
        """What its encoder reads; of a decoder, the images or sounds of prompts, or None."""
        if self.manifest.features is None:
            return self.manifest.source
        return open_part(self.bundle, "media").manifest.source

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """Its tokenizer; None where it has none, or not that of the checkpoint."""
        return None if self.has_own_tokenizer else open_tokenizer(self.bundle)

    @cached_property
    def template(self) -> ChatTemplate:
        """Its chat template, without its graphs. Raises `ChatTemplateError` if it has none."""
        return Chat(self.bundle, self.tokenizer).template

    @cached_property
    def model(self) -> Any:
        """The loaded model."""
        return load(self.bundle.path, device="cpu", isolate=False)
