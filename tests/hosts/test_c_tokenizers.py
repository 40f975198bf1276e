"""Tokenizers in C return the ids and texts that Ortolan's Python runtime returns."""

import json
import random
import struct
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.hosts import tokenizer_cases as cases
from tests.hosts.c_library import Built, build

from ortolan.runtime.errors import TokenizerError
from ortolan.runtime.inputs.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

OTHER = "and another text"

KINDS = [kind for kind in cases.KINDS if kind != "ctc"]


class Reader:
    """Reads what hosts/c/tests/tokenize.c writes."""

    def __init__(self, output: bytes) -> None:
        self._rest = memoryview(output)
        self._bytes = output
        self._at = 0

    def line(self) -> str:
        end = self._bytes.index(b"\n", self._at)
        line = self._bytes[self._at : end].decode()
        self._at = end + 1
        return line

    def numbers(self) -> list[int]:
        line = self.line()
        if line[:1].isalpha():
            raise TokenizerError(line)
        return [int(word) for word in line.split()]

    def text(self) -> str:
        end = self._bytes.index(b":", self._at)
        start, size = end + 1, int(self._bytes[self._at : end])
        self._at = start + size + 1
        return self._bytes[start : start + size].decode()

    def result(self) -> list[Any] | None:
        """What C computed for one text, or `None` if it refused it."""
        try:
            ids = [self.numbers() for _ in range(3)]
            texts = [self.text() for _ in range(3)]
            pair = [self.numbers() for _ in range(2)]
        except TokenizerError:
            assert self.line() == "."
            return None
        assert self.line() == "."
        return [*ids, *texts, *pair]


def tokenize(
    built: Built, *folders: Path, texts: Iterable[bytes]
) -> "subprocess.CompletedProcess[bytes]":
    """Run the program for each folder; the last one's exit status counts."""
    pieces = [piece for text in texts for piece in (text, OTHER.encode())]
    file = folders[0] / "texts"
    file.write_bytes(b"".join(struct.pack("<I", len(piece)) + piece for piece in pieces))
    return subprocess.run(
        [built.folder / "tokenize", file, *folders],
        env=built.environment,
        capture_output=True,
        timeout=550,
    )


def expected(tokenizer: Tokenizer, text: str) -> list[Any] | None:
    try:
        ids = tokenizer.encode(text)
        stream = tokenizer.stream()
        streamed = "".join(map(stream.push, ids)) + stream.flush()
        pair = tokenizer.encode_pair(text, OTHER, max_tokens=12)
        return [
            tokenizer.encode(text, add_special_tokens=False),
            tokenizer.encode(text, max_tokens=9),
            ids,
            tokenizer.decode(ids, skip_special_tokens=False),
            tokenizer.decode(ids),
            streamed,
            [*pair],
            [*pair.types],
        ]
    except TokenizerError:
        return None


def check(built: Built, folder: Path, document: str, texts: Sequence[str]) -> None:
    (folder / "tokenizer.json").write_text(document)
    tokenizer = Tokenizer.from_bytes(document.encode())
    done = tokenize(built, folder, texts=[text.encode() for text in texts])
    assert done.returncode == 0, (done.stdout[-400:], done.stderr.decode()[-4000:])
    reader = Reader(done.stdout)
    for text in texts:
        assert (text, reader.result()) == (text, expected(tokenizer, text))


@pytest.mark.parametrize("kind", [*KINDS, *cases.SHIPPED])
def test_ids_and_texts_equal_those_of_python(sanitized: Built, tmp_path: Path, kind: str) -> None:
    check(sanitized, tmp_path, cases.document(kind), [*cases.texts(200, seed=1)])


@pytest.mark.parametrize("kind", KINDS)
def test_five_thousand_texts_equal_those_of_python(built: Built, tmp_path: Path, kind: str) -> None:
    check(built, tmp_path, cases.document(kind), [*cases.texts(5000, seed=2)])


# --- every character ----------------------------------------------------------------------------

NORMALIZERS: dict[str, Any] = {
    **{name: [{"type": name}] for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")},
    "StripAccents": [{"type": "NFKD"}, {"type": "StripAccents"}],
    "Strip": [{"type": "Strip", "strip_left": True, "strip_right": True}],
    "BertNormalizer": [
        {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        }
    ],
    "Precompiled": [json.loads(cases.with_charsmap(cases.CHARSMAP))["normalizer"]],
}


def spelling(normalizer: Any) -> str:
    """A tokenizer.json whose ids are the bytes of the normalized text."""
    entries = {f"<0x{byte:02X}>": byte for byte in range(256)}
    model = {"type": "BPE", "vocab": entries, "merges": [], "byte_fallback": True}
    parts = {"type": "Sequence", "normalizers": normalizer}
    return json.dumps({"version": "1.0", "added_tokens": [], "normalizer": parts, "model": model})


def splitting(pre_tokenizer: Any) -> str:
    """A tokenizer.json that returns as many ids as there are pieces."""
    model = {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}
    return json.dumps({"version": "1.0", "pre_tokenizer": pre_tokenizer, "model": model})


def all_characters() -> list[str]:
    points = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    return ["".join(map(chr, points[start : start + 64])) for start in range(0, len(points), 64)]


def check_ids(built: Built, folder: Path, document: str, texts: Sequence[str]) -> None:
    (folder / "tokenizer.json").write_text(document)
    tokenizer = Tokenizer.from_bytes(document.encode())
    done = tokenize(built, folder, texts=[text.encode() for text in texts])
    assert done.returncode == 0, done.stderr
    reader = Reader(done.stdout)
    for text in texts:
        result = reader.result()
        assert result is not None
        assert (text, result[0]) == (text, tokenizer.encode(text))


@pytest.mark.parametrize("name", NORMALIZERS)
def test_every_character_is_normalized_as_in_python(
    built: Built, tmp_path: Path, name: str
) -> None:
    check_ids(built, tmp_path, spelling(NORMALIZERS[name]), all_characters())
    # clusters, and orders of accents that normal forms change
    short = [
        f"{a}{b}\u0301{c}" for a in "eq\u0600ᄒ漢 " for b in cases.PARTS for c in "\u0323a\u0344"
    ]
    check_ids(built, tmp_path, spelling(NORMALIZERS[name]), short)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        {"type": "Whitespace"},
        {"type": "WhitespaceSplit"},
        {"type": "BertPreTokenizer"},
        {"type": "Digits", "individual_digits": False},
        {"type": "Punctuation", "behavior": "MergedWithPrevious"},
    ],
    ids=lambda part: part["type"],
)
def test_every_character_is_split_as_in_python(built: Built, tmp_path: Path, part: Any) -> None:
    check_ids(built, tmp_path, splitting(part), [f"a{text}" for text in all_characters()])


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place"),
    [(b"a\xff", 1), (b"\xc0\x80", 0), (b"abc\xed\xa0\x80", 3), (b"\xf0\x9f\x98", 0), (b"\xf5", 0)],
)
def test_text_that_is_not_utf8_is_refused(
    sanitized: Built, tmp_path: Path, text: bytes, place: int
) -> None:
    (tmp_path / "tokenizer.json").write_text(cases.document("gpt2"))
    done = tokenize(sanitized, tmp_path, texts=[text, b"fine"])
    problem, _, rest = done.stdout.partition(b"\n")
    assert problem.decode() == (
        f"tokenizer: The text is not UTF-8 at byte {place}. Decode its source first."
    )
    assert rest.startswith(b".\n")
    assert done.returncode == 0, done.stderr


def changed(kind: str, *path: str | int, value: Any) -> str:
    """A tokenizer.json with another value somewhere."""
    document = json.loads(cases.document(kind))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(document)


REFUSED: dict[str, tuple[str, Any]] = {
    "a normalizer": ("normalizer", {"type": "Reverse"}),
    "a pre-tokenizer": ("pre_tokenizer", {"type": "UnicodeScripts"}),
    "a decoder": ("decoder", {"type": "Sequence", "decoders": [{"type": "Shout"}]}),
    "a decoder of sounds": ("decoder", {"type": "CTC", "pad_token": "<pad>"}),
    "a post-processor": ("post_processor", {"type": "Surround"}),
    "a flag": ("pre_tokenizer", {"type": "Digits", "individual_digits": 1}),
    "a behavior": ("pre_tokenizer", {"type": "Punctuation", "behavior": "Lost"}),
    "no model": ("model", None),
    "a model": ("model", {"type": "Lattice", "vocab": {}}),
    "an id": ("model", {"type": "WordLevel", "vocab": {"a": -1}, "unk_token": "a"}),
    "a broken table": ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AA"}),
    "a pattern": (
        "pre_tokenizer",
        {"type": "Split", "pattern": {"Regex": r"\w+"}, "behavior": "Isolated", "invert": False},
    ),
    "half a pattern": (
        "pre_tokenizer",
        {"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated", "invert": False},
    ),
    "an emptied token": (
        "added_tokens",
        [{"id": 0, "content": "\u0301", "normalized": True, "special": False}],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_part_that_is_not_known_is_an_error_that_names_it(
    sanitized: Built, tmp_path: Path, name: str, snapshot: SnapshotAssertion
) -> None:
    key, value = REFUSED[name]
    kind = "words" if name == "an emptied token" else "bert"
    (tmp_path / "tokenizer.json").write_text(changed(kind, key, value=value))
    done = tokenize(sanitized, tmp_path, texts=[b"text"])
    assert done.returncode == 1, done.stderr
    assert done.stdout.decode() == snapshot


def test_deep_nesting_and_growth_are_errors(sanitized: Built, tmp_path: Path) -> None:
    part: Any = {"type": "NFC"}
    for _ in range(40):
        part = {"type": "Sequence", "normalizers": [part]}
    (tmp_path / "tokenizer.json").write_text(changed("bert", "normalizer", value=part))
    done = tokenize(sanitized, tmp_path, texts=[b"text"])
    assert b"nested too deeply" in done.stdout, done.stderr
    grows = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
    part = {"type": "Sequence", "normalizers": [grows] * 20}
    (tmp_path / "tokenizer.json").write_text(changed("bert", "normalizer", value=part))
    done = tokenize(sanitized, tmp_path, texts=[b"a", b"b"])
    assert b"becomes longer than 64 MB" in done.stdout, done.stderr
    assert done.stdout.endswith(b".\n")


def test_without_pcre2_only_other_patterns_are_refused(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    built = build(tmp_path_factory.mktemp("c-no-pcre2"), "-DORTOLAN_PCRE2=OFF")
    check(built, tmp_path, cases.document("gpt2"), [*cases.texts(50, seed=3)])
    (tmp_path / "tokenizer.json").write_text(cases.document("llama3"))
    done = tokenize(built, tmp_path, texts=[b"text"])
    assert b"Build the library with -DORTOLAN_PCRE2=ON" in done.stdout


@pytest.mark.parametrize("kind", ["llama3", "mistral", "albert", "bert", "word level"])
def test_damaged_files_are_read_or_refused(sanitized: Built, tmp_path: Path, kind: str) -> None:
    """200 mutants of each: changed values, and changed bytes."""
    draw = random.Random(kind)
    original = cases.document(kind)
    folders = [tmp_path / str(place) for place in range(200)]
    for folder in folders:
        folder.mkdir()
        (folder / "tokenizer.json").write_bytes(mutant(draw, original))
    (folders[-1] / "tokenizer.json").write_text(original)
    texts = [text.encode() for text in cases.texts(20, seed=4)]
    done = tokenize(sanitized, *folders, texts=texts)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    assert done.stdout.count(b"\ntokenizer: tokenizer.json") > 20


def mutant(draw: random.Random, original: str) -> bytes:
    if draw.random() < 0.2:
        data = bytearray(original.encode())
        for _ in range(draw.randrange(1, 5)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        return bytes(data)
    document = json.loads(original)
    for _ in range(draw.randrange(1, 4)):
        place: Any = document
        while isinstance(place, dict | list) and place:
            keys = [*place] if isinstance(place, dict) else range(len(place))
            key: Any = draw.choice(keys)
            if draw.random() < 0.3 or not isinstance(place[key], dict | list):
                values = [
                    None,
                    True,
                    -1,
                    2**40,
                    1.5,
                    "",
                    "é",
                    "\u0301",
                    [],
                    {},
                    place[key],
                    "a" * 99,
                ]
                place[key] = draw.choice(values)
                break
            place = place[key]
    return json.dumps(document).encode()
