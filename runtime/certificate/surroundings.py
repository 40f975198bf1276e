"""What surrounds a model in its bundle: texts to ids and back, ids with a meaning, labels.

None of it is a weight, and all of it decides what a user gets.
"""

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

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


class Reading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text, its ids, and the text that these are decoded to, without special tokens."""

    text: Annotated[str, Meta(max_length=_MOST)]
    ids: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=_MOST)]
    decoded: Annotated[str, Meta(max_length=4 * _MOST)]


class Surroundings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was exported beside the model.

    Attributes:
        meanings: see `meanings_sha256`.
        files: the hash of each file that a tokenizer, chats or generation are made of, by name.
        readings: by the tokenizer; none where there is none.
    """

    meanings: Sha256
    files: Annotated[dict[FileName, Sha256], Meta(max_length=16)] = {}
    readings: Annotated[tuple[Reading, ...], Meta(max_length=64)] = ()


class SurroundingsReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether that is what a bundle has.

    Attributes:
        readings: texts that were encoded and decoded.
        wrong: what is not as it was exported, in words.
    """

    readings: int
    wrong: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """In one line."""
        if self.wrong:
            return f"other than what was exported: {', '.join(self.wrong)}"
        texts = f"{self.readings} texts to ids and back, " if self.readings else ""
        return f"{texts}roles of tokens and labels as exported"


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
    bundle: "Bundle", tokenizer: "Tokenizer | None", expected: Surroundings
) -> SurroundingsReport:
    """Compare what surrounds the model of a bundle with what was exported."""
    wrong = []
    if meanings_of(bundle.manifest) != expected.meanings:
        wrong.append("roles of tokens, labels or sizes of inputs")
    hashes = {file.name: file.sha256 for file in bundle.manifest.files}
    wrong += [name for name, sha256 in expected.files.items() if hashes.get(name) != sha256]
    if expected.readings and not (tokenizer and _reads(tokenizer, expected.readings)):
        wrong.append("ids or texts that the tokenizer gives")
    return SurroundingsReport(readings=len(expected.readings), wrong=tuple(wrong))


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
