"""Text in, text out in C: the text that Ortolan's Python runtime generates."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.c_library import REPOSITORY, Built
from tests.runtime.damaged_bundles import edit_json, put
from tests.runtime.tiny_decoder import VOCABULARY, write_bundle

import ortolan
from ortolan import Sampling
from ortolan.runtime.inputs.token_stream import BYTE_ALPHABET

pytestmark = pytest.mark.slow

LETTERS = {byte: letter for letter, byte in BYTE_ALPHABET.items()}
CHARACTERS = "é日😀"
BYTES = sorted({*range(0x20, 0x68), *CHARACTERS.encode()} | {0xC0, 0xF5, 0xED, 0xA0, 0xE0})[:96]


def tokenizer() -> bytes:
    """A token for each of some bytes, and an end: random tokens are broken UTF-8 now and then."""
    vocabulary = {LETTERS[byte]: place for place, byte in enumerate(BYTES)}
    special = {"id": len(BYTES), "content": "<end>", "special": True, "normalized": False}
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip"], False)
    part = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [special | flags],
            "pre_tokenizer": part,
            "decoder": part,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        }
    ).encode()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert len(BYTES) < VOCABULARY
    folder = tmp_path_factory.mktemp("bytes") / "bundle"
    write_bundle(folder, tokenizer=tokenizer())
    return folder


def completed(
    built: Built, bundle: Path, prompt: str, new: int, stop: tuple[str, ...] = (), **options: Any
) -> tuple[str, str]:
    words = [word for text in stop for word in ("--stop", text)]
    words += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    done = built.run("complete", bundle, new, prompt, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr.strip()


def expected(
    bundle: Path, prompt: str, new: int, stop: tuple[str, ...] = (), **options: Any
) -> tuple[str, str]:
    completion = ortolan.load(bundle).generate(
        prompt,
        max_new_tokens=new,
        stop=stop,
        sampling=Sampling(**options) if options else None,
    )
    return str(completion.text), completion.finish_reason


@pytest.mark.parametrize("seed", range(6))
def test_random_bytes_become_the_text_of_python(sanitized: Built, bundle: Path, seed: int) -> None:
    options: dict[str, Any] = {"temperature": 3.0, "seed": seed}
    text = expected(bundle, "Abc é", 120, **options)
    assert completed(sanitized, bundle, "Abc é", 120, **options) == text
    assert "\ufffd" in text[0]
    # a stop text from the middle, one that never comes, and one that begins like the text
    stop = (text[0][40:43], "never", text[0][40:42] + "?")
    stopped = expected(bundle, "Abc é", 120, stop, **options)
    assert stopped[1] == "stop"
    assert completed(sanitized, bundle, "Abc é", 120, stop, **options) == stopped


@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_trained_model_writes_the_text_of_python(
    built: Built, tmp_path: Path, precision: Any
) -> None:
    bundle = tmp_path / "pythonic"
    ortolan.export(REPOSITORY / "models" / "pythonic", bundle, precision=precision)
    for prompt in ("def read_lines(path):", "import os\n\n# größe\nclass ", "x"):
        assert completed(built, bundle, prompt, 80) == expected(bundle, prompt, 80)
    drawn: dict[str, Any] = {"temperature": 0.9, "seed": 3}
    text = expected(bundle, "def ", 80, ("return", "\n\n"), **drawn)
    assert completed(built, bundle, "def ", 80, ("return", "\n\n"), **drawn) == text


def test_bundle_without_a_tokenizer_takes_ids_only(
    built: Built, bundle: Path, tmp_path: Path
) -> None:
    bundle = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    edit_json(bundle, "manifest.json", put("tokenizer", value=None))
    done = built.run("complete", bundle, 8, "a")
    assert done.stderr == (
        "tokenizer: This bundle has no tokenizer. Pass token ids, or export with --tokenizer.\n"
    )
    assert built.generate(bundle, [1], 4)


def test_wrong_stop_texts_are_refused(built: Built, bundle: Path) -> None:
    done = built.run("complete", bundle, 8, "a", "--stop", "")
    assert "A stop text must have 1 to 1024 bytes (got 0)" in done.stderr
    done = built.run("complete", bundle, 8, b"\xff".decode(errors="surrogateescape"))
    assert "The text is not UTF-8 at byte 0" in done.stderr
