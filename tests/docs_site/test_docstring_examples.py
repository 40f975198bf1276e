"""Every example in the documentation of a public name runs."""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import soundfile
from tests.cases import encoders, pairs, readers
from tests.cases.run import Runs
from tests.export import tiny_qwen3_asr
from tests.runtime import tiny_translators
from tests.runtime.chat.tiny_chat import packed_chat_models
from tests.runtime.transcription.tiny_wav2vec2 import write_wav2vec2
from tests.runtime.transcription.tiny_whisper import RATE, sound, write_whisper
from tests.server.conftest import TEMPLATE

import ortolan
from ortolan.runtime import loading

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]

PACKAGES = ("ortolan", "ortolan.runtime", "ortolan.modeling", "ortolan.export", "ortolan.signing")

SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes):$", re.MULTILINE)

MODELS = {
    "Encoder.classify_as": "entailment",
    "Encoder.classify_tokens": "tagger",
    "Encoder.answer": "reader",
    "Encoder.fill": "filler",
    "Encoder": "embedder",
    "EncoderService": "embedder",
    "EncoderCall": "embedder",
    "Seq2Seq": "translator",
    "Seq2SeqService": "translator",
}
"""The model of examples that have one already; a decoder by default."""


def documented() -> Iterator[tuple[str, object]]:
    """Public names, and the methods of public classes."""
    for package in PACKAGES:
        module = import_module(package)
        yield package, module
        for name in module.__all__:
            value = getattr(module, name)
            yield name, value
            if inspect.isclass(value) and value.__module__.startswith("ortolan"):
                for own, member in vars(value).items():
                    if not own.startswith("_"):
                        yield f"{name}.{own}", member


def example(value: object) -> str:
    """The indented lines of a docstring before its first section."""
    text = inspect.cleandoc(getattr(value, "__doc__", None) or "")
    lines = SECTION.split(text)[0].splitlines()
    return "\n".join(line.removeprefix("    ") for line in lines if line.startswith("    "))


EXAMPLES = {name: code for name, value in documented() if (code := example(value))}


def test_there_are_examples() -> None:
    assert {"Decoder", "Encoder", "Seq2Seq", "Seq2Seq.transcribe", "load"} <= EXAMPLES.keys()
    assert len(EXAMPLES) > 20


CASES = {
    "tagger": readers.TOKENS,
    "filler": readers.BLANKS,
    "reader": readers.ANSWERS,
    "entailment": pairs.ENTAILED,
    "embedder": encoders.EMBEDDING,
    "encoder": encoders.TAGS,
    "classifier": encoders.TAGS,
}


@pytest.fixture(scope="module")
def bundle_of(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes the bundle of a name once."""
    root = tmp_path_factory.mktemp("bundles")
    makes: dict[str, Callable[[], Path]] = {
        "bundle": lambda: packed_chat_models(root, ("fp32",), TEMPLATE)["fp32"].bundle.path,
        "translator": lambda: _translator(root / "translation"),
        "whisper": lambda: _exported(write_whisper, root / "speech"),
        "wav2vec2": lambda: _exported(write_wav2vec2, root / "waves"),
        "qwen3-asr": lambda: _exported(tiny_qwen3_asr.write, root / "chunks"),
    }
    return cache(lambda name: runs(CASES[name]).bundle if name in CASES else makes[name]())


def _translator(folder: Path) -> Path:
    tiny_translators.write_bundle("marian", folder)
    return folder / "bundle"


def _exported(write: Callable[[Path], object], folder: Path) -> Path:
    write(folder)
    return ortolan.export(folder, folder / "bundle").path


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(
    name: str,
    bundle_of: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(path: str, *kind: Any, **options: Any) -> Any:
        place = "bundle" if path.startswith("org/") else path.rstrip("/")  # a name on the Hub
        return loading.load(bundle_of(place), *kind, **options)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ortolan.runtime.load", load)
    soundfile.write("talk.mp3", sound(1.0), RATE)
    Path("checkpoint").symlink_to(REPOSITORY / "models" / "pythonic")
    model = load(MODELS.get(name, MODELS.get(name.partition(".")[0], "bundle")))
    names = {**vars(import_module("ortolan")), **vars(import_module("ortolan.runtime"))}
    names |= {public: getattr(ortolan, public) for public in ortolan.__all__}
    names |= {"load": load, "model": model}
    with model.serve() as service:
        names["ticket"] = names["call"] = _ticket(name, service)
        if name.startswith("Conversation."):
            tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
            names |= {"conversation": model.conversation(), "tools": [tool], "run": str}
        exec(EXAMPLES[name], names)


def _ticket(name: str, service: Any) -> Any:
    """A ticket whose request has few tokens, for examples that have one already."""
    match name:
        case "Ticket":
            return service.submit("def", max_new_tokens=4)
        case "EncoderCall":
            return service.embed(["a b"])
        case _:
            return None
