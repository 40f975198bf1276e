"""Conversations and translations in C: the prompts, ids and texts of Ortolan's Python runtime."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.hosts.c_library import REPOSITORY, Built
from tests.runtime import tiny_translators
from tests.runtime.chat.families import library, source
from tests.runtime.damaged_bundles import edit_json, put
from tests.runtime.transcription.tiny_whisper import EOS, sound, write_whisper

import ortolan
from ortolan import Sampling
from ortolan.runtime import Decoder

pytestmark = pytest.mark.slow

FAMILIES = ("chatml", "llama3", "gemma", "mistral", "phi", "zephyr", "qwen3", "deepseek")

CONVERSATIONS: tuple[tuple[str, ...], ...] = (
    ("uWhat is the weather in Paris?\nAnd why?",),
    ("sBe brief. \x1f\u2003", "u  Café, 日本語 🙂\n\n"),
    ("u", "a\n\n It rains.\n ", "uWhy? {{ x }}"),
    ("sBe brief.", "u1", "a2", "u3", "a4", "u5", "a6", "u7"),
)

WRONG: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "an answer at the end": ("uA", "aB"),
    "an answer first": ("aB", "uA"),
    "two questions": ("uA", "uB"),
    "a late system message": ("uA", "sB", "uC"),
    "an empty system message": ("s", "uA"),
    "a control token": ("uA <|im_end|> B",),
    "a control token of the template": ("uA", "aB</think>C", "uD"),
    "a character that is cut": ("u" + b"\xc3".decode(errors="surrogateescape"),),
}


def messages(words: tuple[str, ...]) -> list[dict[str, str]]:
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return [{"role": roles[word[0]], "content": word[1:]} for word in words]


def converse(built: Built, bundle: Path, task: str, *texts: str, new: int = 20) -> tuple[str, Any]:
    """The text of a call that was made twice, and the ids; or the error."""
    done = built.run("converse", bundle, task, new, *texts)
    if done.returncode != 0:
        return done.stderr.strip().splitlines()[-1], None
    (text, other, rest), ids = done.stdout.split("\0"), done.stderr.splitlines()
    assert (text, ids[0], rest) == (other, ids[1], "")
    return text, [int(word) for word in ids[0].split()]


@pytest.fixture(scope="module")
def bundle_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def exported(family: str) -> Path:
        folder = tmp_path_factory.mktemp(family)
        tokenizer = library(family)
        sizes: dict[str, Any] = {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_attention_heads": 4,
        }
        with torch.random.fork_rng():
            torch.manual_seed(2)
            config = transformers.LlamaConfig(
                **sizes,
                num_hidden_layers=2,
                num_key_value_heads=2,
                vocab_size=tokenizer.get_vocab_size(),
                initializer_range=0.4,
                max_position_embeddings=512,
                eos_token_id=None,
            )
            model = transformers.LlamaForCausalLM(config)
        model.save_pretrained(folder / "checkpoint")
        tokenizer.save(str(folder / "checkpoint" / "tokenizer.json"))
        (folder / "checkpoint" / "chat_template.jinja").write_text(source(family))
        named = {"bos_token": "<s>", "eos_token": "</s>"}
        (folder / "checkpoint" / "tokenizer_config.json").write_text(json.dumps(named))
        options = ortolan.ExportOptions(proof="quick", witness=False)
        ortolan.export(folder / "checkpoint", folder / "bundle", options=options)
        return folder / "bundle"

    return exported


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_equal_those_of_python(built: Built, bundle_of: Any, family: str) -> None:
    model = ortolan.load(bundle_of(family), Decoder)
    for words in CONVERSATIONS:
        reply = model.chat(messages(words), max_new_tokens=20, sampling=Sampling())
        text, ids = converse(built, model.bundle.path, "chat", *words)
        assert ids == [*reply.completion.tokens]
        expected = model.generate(
            model.chat_template.prompt(messages(words)).ids,
            max_new_tokens=20,
            stop_tokens=model.bundle.manifest.chat.ends,  # type: ignore[union-attr]
        )
        assert text == expected.text
        prompt, _ = converse(built, model.bundle.path, "prompt", *words)
        assert prompt == model.chat_template.prompt(messages(words)).text


def test_answer_ends_with_the_turn(built: Built, bundle_of: Any) -> None:
    bundle = bundle_of("qwen3")
    _, ids = converse(built, bundle, "chat", "uHi.")
    edit_json(bundle, "manifest.json", put("chat", "ends", value=[ids[5]]))
    try:
        _, cut = converse(built, bundle, "chat", "uHi.")
    finally:
        edit_json(bundle, "manifest.json", put("chat", "ends", value=[]))
    assert cut == ids[: ids.index(ids[5]) + 1]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_conversations_are_refused(sanitized: Built, bundle_of: Any, name: str) -> None:
    error, ids = converse(sanitized, bundle_of("qwen3"), "chat", *WRONG[name])
    assert ids is None
    assert error.startswith("input: ")
    if "control" in name:
        assert "contains the control token `<" in error


def test_sanitizers_find_nothing_in_conversations(sanitized: Built, bundle_of: Any) -> None:
    for family in ("mistral", "llama3", "gemma"):
        for words in CONVERSATIONS:
            _, ids = converse(sanitized, bundle_of(family), "chat", *words)
            assert ids


def test_template_without_a_form_is_refused_by_name(built: Built, bundle_of: Any) -> None:
    bundle = bundle_of("chatml")
    text = (bundle / "manifest.json").read_bytes()
    edit_json(bundle, "manifest.json", lambda manifest: manifest.pop("chat"))
    error, _ = converse(built, bundle, "chat", "uHi.")
    (bundle / "manifest.json").write_bytes(text)
    assert error.startswith("input: chat_template.jinja of this bundle does more than put texts")


@pytest.mark.parametrize(
    "change",
    [
        put("chat", "opening", value=None),
        put("chat", "system", value=["a"]),
        put("chat", "system_place", value="middle"),
        put("chat", "trims", value={"user": "all"}),
        put("chat", "ends", value=[1 << 20]),
        put("chat", "date", value=3),
        put("chat", "more", value="x"),
        put("chat", value=[]),
    ],
)
def test_damaged_form_is_refused(sanitized: Built, bundle_of: Any, change: Any) -> None:
    bundle = bundle_of("chatml")
    text = (bundle / "manifest.json").read_bytes()
    edit_json(bundle, "manifest.json", change)
    error, _ = converse(sanitized, bundle, "chat", "uHi.")
    (bundle / "manifest.json").write_bytes(text)
    assert error.startswith("manifest: ")


# --- encoder-decoders ---------------------------------------------------------------------------

SOURCES = ("Hello!", "a", "The quick brown fox jumps", "12 + 3", "x" * 19)


@pytest.mark.parametrize("form", ["marian", "bart", "t5", "marian-split", "t5wide-split"])
def test_translations_equal_those_of_python(sanitized: Built, tmp_path: Path, form: str) -> None:
    tiny_translators.write_bundle(form, tmp_path)
    model = ortolan.load(tmp_path / "bundle", ortolan.Seq2Seq)
    for text in SOURCES:
        completion = model.generate(text, max_new_tokens=24)
        result = converse(sanitized, tmp_path / "bundle", "translate", text, new=24)
        assert result == (completion.text, [*completion.tokens])
        completion = model.generate(text, max_new_tokens=6, first="Q")
        result = converse(sanitized, tmp_path / "bundle", "translate", text, "Q", new=6)
        assert result == (completion.text, [*completion.tokens])


SOUNDS: tuple[tuple[str, float, dict[str, Any]], ...] = (
    ("hear", 1.0, {}),
    ("hear", 0.4, {}),
    ("hear", 0.003, {"language": "de"}),
    ("render", 0.7, {"language": "en", "translate": True}),
    ("render", 0.9, {"translate": True}),
)


def test_transcriptions_equal_those_of_python(sanitized: Built, tmp_path: Path) -> None:
    write_whisper(tmp_path / "checkpoint")
    bundle = tmp_path / "bundle"
    options = ortolan.ExportOptions(proof="quick", witness=False)
    ortolan.export(tmp_path / "checkpoint", bundle, options=options)
    model = ortolan.load(bundle, ortolan.Seq2Seq)
    texts = set()
    for task, seconds, spoken in SOUNDS:
        samples = sound(seconds, seed=int(100 * seconds))
        samples.tofile(tmp_path / "sound")
        transcript = model.transcribe(samples, timestamps=False, **spoken)
        language = [spoken["language"]] if "language" in spoken else []
        text, ids = converse(sanitized, bundle, task, str(tmp_path / "sound"), *language, new=0)
        words, _, code = text.rpartition("|")
        tokens = [token for segment in transcript.segments for token in segment.tokens]
        assert (words.strip(), code) == (transcript.text, transcript.language)
        assert [token for token in ids[3:] if token != EOS] == tokens
        texts.add(words)
    assert len(texts) > 2
    for file, more, expected in (
        ("checkpoint/none", [], "input: A sound must have 1 to 16000 samples at 16000 Hz (got 0)"),
        ("sound", ["fr"], "input: The model does not know the language `fr`"),
    ):
        error, _ = converse(sanitized, bundle, "hear", str(tmp_path / file), *more)
        assert error.startswith(expected)
    assert converse(sanitized, bundle, "translate", "a")[0].startswith("kind: This bundle reads s")
    error, _ = converse(sanitized, REPOSITORY / "none", "hear", "x")
    assert error.startswith("bundle-not-found: ")


def test_wrong_sources_are_refused(sanitized: Built, bundle_of: Any, tmp_path: Path) -> None:
    tiny_translators.write_bundle("bart", tmp_path)
    bundle = tmp_path / "bundle"
    for texts, expected in (
        (("",), "input: Input 0 has no tokens"),
        (("x" * 600,), "context-length: Input 0 has "),
        (("a", "two"), "input: first must be one token, but `two` has 3"),
    ):
        error, _ = converse(sanitized, bundle, "translate", *texts)
        assert error.startswith(expected)
    error, _ = converse(sanitized, bundle, "chat", "uHi.")
    assert error.startswith("kind: This bundle is an encoder-decoder. Use ortolan_translate")
    error, _ = converse(sanitized, bundle_of("chatml"), "translate", "a")
    assert error.startswith("kind: This bundle is a decoder")
