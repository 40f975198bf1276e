"""Checks everything around a model that users depend on: tokenizer, special tokens, labels."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ortolan.runtime import limits
from ortolan.runtime.bundle.field_types import Sha256
from ortolan.runtime.bundle.image_sources import ImageSource, PatchSource
from ortolan.runtime.bundle.labels import distinct, named_scores
from ortolan.runtime.bundle.manifest import (
    FileName,
    Manifest,
    Output,
    Source,
    Speech,
    State,
    Tokens,
)
from ortolan.runtime.bundle.parts import Comparison, Dictation, Features, HiddenStates
from ortolan.runtime.errors import InputError, MissingExtraError, TokenizerError
from ortolan.runtime.inputs.images import read_pixels
from ortolan.runtime.inputs.patches import read_whole
from ortolan.runtime.verification.probes import (
    SAMPLES,
    probe_picture,
    sampled,
    tolerances,
)

if TYPE_CHECKING:
    from ortolan.runtime.bundle.bundle import Bundle
    from ortolan.runtime.inputs.tokenizer import Tokenizer

_MOST = 4096
"""Characters of a text, and its token ids."""

PROBE_TEXTS = (
    "The quick brown fox doesn't jump over 12 lazy dogs; it's 3.14159 km away (or 1,000 ft).",
    'def read(path):\n    with open(path) as file:\n\treturn file.read()  # "done" & {x: [1]}\n',
    "  Leading, trailing   and\n\n\nblank lines \t ",
    "Größe, déjà vu, señor, Łódź; Привет, мир; Ελλάδα",
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947",
    "\u4f60\u597d\uff0c\u4e16\u754c \u3053\u3093\u306b\u3061\u306f \uc548\ub155",
    "\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd",
    "\u00bd \ufb01 \u2167 \u212b e\u0301 \u200b \u00a0 \ufffd",
    "<s> </s> <pad> <unk> [CLS] [SEP] <|endoftext|> <|im_start|>user",
)
"""Texts that exercise a tokenizer: words, signs and scripts of many kinds."""


MAX_SCORES = 8
"""Labels per probe whose scores are kept."""

Scores = Annotated[dict[str, float], Meta(max_length=MAX_SCORES)]

_CLOSE: Mapping[str, Any] = {"rtol": 1e-6, "atol": 1e-9}
"""Tolerance of scores computed from the same numbers in float64."""


class Reading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text, its ids, and the text decoded from them without special tokens."""

    text: Annotated[str, Meta(max_length=_MOST)]
    ids: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=_MOST)]
    decoded: Annotated[str, Meta(max_length=4 * _MOST)]


class Surroundings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Tokenizer, labels and preprocessing as exported.

    Attributes:
        meanings: hash of `Meanings`.
        files: hashes of the graphs and of the files for tokenizer, chat and generation, by name.
        readings: by the tokenizer, if there is one.
        scores: for labels, by probe, or for the first tokens if each has labels: the highest
            first, as PyTorch computes them from the reference.
        pixels: samples of the probe picture after the image processor, for encoders of images
            without alpha channel.
    """

    meanings: Sha256
    files: Annotated[dict[FileName, Sha256], Meta(max_length=16)] = {}
    readings: Annotated[tuple[Reading, ...], Meta(max_length=64)] = ()
    scores: Annotated[tuple[Scores, ...], Meta(max_length=limits.MAX_PROBES)] = ()
    pixels: Annotated[tuple[float, ...], Meta(max_length=SAMPLES)] = ()


class SurroundingsReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many texts, probes' scores and pixels were compared, and what differs, in words."""

    readings: int
    wrong: tuple[str, ...] = ()
    scores: int = 0
    pixels: int = 0
    unchecked: str = ""

    @property
    def summary(self) -> str:
        """One line for a person."""
        if self.wrong:
            return f"different from the export: {', '.join(self.wrong)}"
        texts = f"{self.readings} texts to ids and back, " if self.readings else ""
        scores = f"scores of {self.scores} probes, " if self.scores else ""
        pixels = f"{self.pixels} pixels of a picture, " if self.pixels else ""
        rest = f"; not compared: {self.unchecked}" if self.unchecked else ""
        return f"{texts}{scores}{pixels}roles of tokens and labels as exported{rest}"


class Meanings(NamedTuple):
    """The parts of a manifest that give ids, inputs, outputs and states their meaning."""

    context_length: int
    vocab_size: int
    tokens: Tokens
    source: Source | None
    output: Output | None
    features: Features | None
    hidden_states: HiddenStates | None
    speech: Speech | None
    dictation: Dictation | None
    texts: Comparison | None
    windows: Mapping[str, int]

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Return those of a manifest."""
        *names, _windows = cls._fields
        values = {name: getattr(manifest, name) for name in names}
        return cls(**values, windows=windows_of(manifest.states))

    @property
    def sha256(self) -> str:
        """Their hash."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()


def read_probes(tokenizer: "Tokenizer") -> tuple[Reading, ...]:
    """Encode and decode the probe texts, except those that the tokenizer rejects."""
    readings = []
    for text in PROBE_TEXTS:
        with suppress(TokenizerError):
            readings.append(_read(tokenizer, text))
    return tuple(readings)


def check_surroundings(
    bundle: "Bundle",
    tokenizer: "Tokenizer | None",
    expected: Surroundings,
    numbers_of: Callable[[int], NDArray[np.float32]],
) -> SurroundingsReport:
    """Compare the surroundings of a bundle with those of its export.

    `numbers_of` returns the reference for a number of labels, `(R, L)`.
    """
    wrong, unchecked = [], ""
    if expected.meanings != Meanings.of(bundle.manifest).sha256:
        wrong.append("roles of tokens, labels, or sizes of inputs or windows")
    hashes = {file.name: file.sha256 for file in bundle.manifest.files}
    wrong += [name for name, sha256 in expected.files.items() if hashes.get(name) != sha256]
    if expected.readings and not (tokenizer and _reads(tokenizer, expected.readings)):
        wrong.append("token ids or decoded texts")
    if expected.scores and not _scores_agree(bundle.manifest, expected.scores, numbers_of):
        wrong.append("labels or their scores")
    pixels = len(expected.pixels)
    try:
        if expected.pixels and not _pixels_agree(bundle.manifest.source, expected.pixels):
            wrong.append("pixels of images")
    except InputError:  # steps of the manifest that do not fit together
        wrong.append("pixels of images")
    except MissingExtraError:
        pixels, unchecked = 0, "pixels of images, without Pillow"
    graphs = {graph.file for graph in bundle.manifest.graphs.values()}
    wrong += sorted(graphs - expected.files.keys())
    return SurroundingsReport(
        readings=len(expected.readings),
        wrong=tuple(wrong),
        scores=len(expected.scores),
        pixels=pixels,
        unchecked=unchecked,
    )


def _pixels_agree(source: Source | None, expected: tuple[float, ...]) -> bool:
    """Whether this runtime turns the probe picture into the same pixels."""
    match source:
        case ImageSource():
            pixels_CHW = read_pixels(probe_picture(source), source)
        case PatchSource():
            pixels_CHW = read_whole(probe_picture(source), source)
        case _:
            return False
    got = sampled(pixels_CHW)
    if got.shape != (len(expected),):
        return False
    return bool((np.abs(got - np.array(expected)) <= tolerances(source, pixels_CHW)).all())


def _scores_agree(
    manifest: Manifest,
    expected: tuple[Scores, ...],
    numbers_of: Callable[[int], NDArray[np.float32]],
) -> bool:
    """Whether this runtime computes PyTorch's labels and scores."""
    function = manifest.output_kind.scores
    if manifest.output is None or function is None:
        return False
    labels = distinct(manifest.output.labels)
    numbers_RL = numbers_of(len(labels))
    if manifest.output_kind.by_token:
        numbers_RL = numbers_RL[: len(expected)]
    if numbers_RL.shape != (len(expected), len(labels)):
        return False
    results = [named_scores(row_L, function, labels) for row_L in numbers_RL]
    return all(
        np.allclose([result.get(label, np.nan) for label in scores], [*scores.values()], **_CLOSE)
        for result, scores in zip(results, expected, strict=True)
    )


def windows_of(states: Iterable[State]) -> dict[str, int]:
    """Return the windows of states that have one, by name."""
    return {state.name: state.window for state in states if state.window is not None}


def _reads(tokenizer: "Tokenizer", readings: tuple[Reading, ...]) -> bool:
    try:
        return all(_read(tokenizer, reading.text) == reading for reading in readings)
    except TokenizerError:
        return False


def _read(tokenizer: "Tokenizer", text: str) -> Reading:
    ids = tokenizer.encode(text)
    return Reading(text=text, ids=tuple(ids), decoded=tokenizer.decode(ids))
