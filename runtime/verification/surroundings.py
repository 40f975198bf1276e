"""What surrounds a model in its bundle: texts to ids and back, ids with a meaning, labels.

None of it is a weight, and all of it decides what a user gets.
"""

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ortolan.runtime import limits
from ortolan.runtime.bundle.labels import distinct, named_scores
from ortolan.runtime.bundle.manifest import (
    FileName,
    ImageSource,
    Manifest,
    Output,
    Sha256,
    TextSource,
    Tokens,
)
from ortolan.runtime.errors import TokenizerError

if TYPE_CHECKING:
    from ortolan.runtime.bundle.bundle import Bundle
    from ortolan.runtime.inputs.tokenizer import Tokenizer

__all__ = [
    "Reading",
    "Surroundings",
    "SurroundingsReport",
    "check_surroundings",
    "meanings_of",
    "meanings_sha256",
    "read_probes",
]

_MOST = 4096
"""Letters of a text, and ids of one."""

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
"""What a tokenizer is asked; each word, sign and script takes another way through it."""


MAX_SCORES = 8
"""Labels of a probe whose scores are kept."""

Scores = Annotated[dict[str, float], Meta(max_length=MAX_SCORES)]

_CLOSE: Mapping[str, Any] = {"rtol": 1e-6, "atol": 1e-9}
"""How close scores have to be that are computed from the same numbers, in float64."""


class Reading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text, its ids, and the text that these are decoded to, without special tokens."""

    text: Annotated[str, Meta(max_length=_MOST)]
    ids: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=_MOST)]
    decoded: Annotated[str, Meta(max_length=4 * _MOST)]


class Surroundings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What was exported beside the model.

    Attributes:
        meanings: see `meanings_sha256`.
        files: the hash of each file that a tokenizer, chats or generation are made of, by name.
        readings: by the tokenizer; none where there is none.
        scores: of each probe by label, the highest first, as PyTorch computes them from the
            reference; none of other outputs, and in certificates from before there were any.
    """

    meanings: Sha256
    files: Annotated[dict[FileName, Sha256], Meta(max_length=16)] = {}
    readings: Annotated[tuple[Reading, ...], Meta(max_length=64)] = ()
    scores: Annotated[tuple[Scores, ...], Meta(max_length=limits.MAX_PROBES)] = ()


class SurroundingsReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether that is what a bundle has.

    Attributes:
        readings: texts that were encoded and decoded.
        wrong: what is not as it was exported, in words.
        scores: probes whose labels were scored.
    """

    readings: int
    wrong: tuple[str, ...] = ()
    scores: int = 0

    @property
    def summary(self) -> str:
        """In one line."""
        if self.wrong:
            return f"other than what was exported: {', '.join(self.wrong)}"
        texts = f"{self.readings} texts to ids and back, " if self.readings else ""
        scores = f"scores of {self.scores} probes, " if self.scores else ""
        return f"{texts}{scores}roles of tokens and labels as exported"


def meanings_sha256(
    *,
    context_length: int,
    vocab_size: int,
    tokens: Tokens,
    source: TextSource | ImageSource | None,
    output: Output | None,
) -> str:
    """The hash of what a manifest says of ids, of what is read and of what is given."""
    said = (context_length, vocab_size, tokens, source, output)
    return hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()


def read_probes(tokenizer: "Tokenizer") -> tuple[Reading, ...]:
    """What a tokenizer makes of the probes, but for those that it cannot take."""
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
    """Compare what surrounds the model of a bundle with what was exported.

    Args:
        bundle: opened.
        tokenizer: its tokenizer; None where it has none, or none that can be read.
        expected: what was exported.
        numbers_of: what the model computed of so many labels for each probe, `(R, L)`.
    """
    wrong = []
    if meanings_of(bundle.manifest) != expected.meanings:
        wrong.append("roles of tokens, labels or sizes of inputs")
    hashes = {file.name: file.sha256 for file in bundle.manifest.files}
    wrong += [name for name, sha256 in expected.files.items() if hashes.get(name) != sha256]
    if expected.readings and not (tokenizer and _reads(tokenizer, expected.readings)):
        wrong.append("ids or texts that the tokenizer gives")
    if expected.scores and not _scores_agree(bundle.manifest, expected.scores, numbers_of):
        wrong.append("labels or their scores")
    return SurroundingsReport(
        readings=len(expected.readings), wrong=tuple(wrong), scores=len(expected.scores)
    )


def _scores_agree(
    manifest: Manifest,
    expected: tuple[Scores, ...],
    numbers_of: Callable[[int], NDArray[np.float32]],
) -> bool:
    """Whether this runtime names and scores outputs as PyTorch did."""
    function = manifest.output_kind.scores
    if manifest.output is None or function is None:
        return False
    labels = distinct(manifest.output.labels)
    numbers_RL = numbers_of(len(labels))
    if numbers_RL.shape != (len(expected), len(labels)):
        return False
    found = [named_scores(row_L, function, labels) for row_L in numbers_RL]
    return all(
        np.allclose([got.get(label, np.nan) for label in scores], [*scores.values()], **_CLOSE)
        for got, scores in zip(found, expected, strict=True)
    )


def meanings_of(manifest: Manifest) -> str:
    """`meanings_sha256` of a manifest."""
    return meanings_sha256(
        context_length=manifest.context_length,
        vocab_size=manifest.vocab_size,
        tokens=manifest.tokens,
        source=manifest.source,
        output=manifest.output,
    )


def _reads(tokenizer: "Tokenizer", readings: tuple[Reading, ...]) -> bool:
    try:
        return all(_read(tokenizer, each.text) == each for each in readings)
    except TokenizerError:
        return False


def _read(tokenizer: "Tokenizer", text: str) -> Reading:
    ids = tokenizer.encode(text)
    return Reading(text=text, ids=tuple(ids), decoded=tokenizer.decode(ids))
