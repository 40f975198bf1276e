"""Single faults of our readers, which the certificate cannot see: the witness names each."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.cases.comparison import findings, save_tiny
from tests.export.witness.reader_faults import BASES, READERS
from tests.runtime.damaged_bundles import Json, edit_json, put
from tests.runtime.tiny_tokenizers import byte_level, sentencepiece
from tests.tiny.decoders import LLAMA
from tokenizers import AddedToken, Tokenizer, normalizers

import ortolan
from ortolan.export.witness import topics
from ortolan.runtime.bundle.manifest import NAME

TEMPLATE = """{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}
<tool>{{ m.role }}: {% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}
{{- m.content | tojson if m.role == "tool" else m.content | trim }}
{%- for call in m.tool_calls or [] %}{{ call.function.arguments | tojson }}
{%- endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<tool>assistant: {% endif %}"""

GENERATION = {
    "bos_token_id": 0,
    "eos_token_id": [1, 5],
    "suppress_tokens": [7, 8],
    "repetition_penalty": 1.3,
    "do_sample": True,
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.9,
    "min_p": 0.05,
}

Exported = Callable[[str], tuple[Path, Path]]

First = Callable[[str, Path, Path], str | None]


def of_bytes() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken("<note>", lstrip=True, normalized=False)])
    return tokenizer


TOKENIZERS: dict[str, tuple[Callable[[], Tokenizer], dict[str, Any]]] = {
    "bytes": (of_bytes, {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"}),
    "characters": (
        sentencepiece,
        {"tokenizer_class": "LlamaTokenizer", "legacy": False, "bos_token": "<s>"},
    ),
}
"""Tokenizers and their configs."""


def write(name: str, folder: Path) -> None:
    """A decoder with a tokenizer, a chat template and settings of `generate`."""
    make, config = TOKENIZERS[name]
    values = {"vocab_size": 420, "bos_token_id": 0, "eos_token_id": 1}
    save_tiny(LLAMA | values, folder, spread=0.2)
    make().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A checkpoint and its bundle, by the name of its tokenizer."""

    @cache
    def export_of(name: str) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp(name)
        write(name, folder / "checkpoint")
        return folder / "checkpoint", export(folder / "checkpoint", folder / "bundle")

    return export_of


def export(checkpoint: Path, folder: Path) -> Path:
    ortolan.export(checkpoint, folder, options=ortolan.ExportOptions(proof="quick"))
    return folder


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> First:
    """What a witness that asks about one topic alone finds first."""

    def ask(topic: str, checkpoint: Path, bundle: Path) -> str | None:
        asked = tuple(own for own in topics.TOPICS if own.name == topic)
        monkeypatch.setattr(topics, "TOPICS", asked)
        return findings(checkpoint, bundle)[topic].first

    return ask


def test_a_bundle_without_faults_agrees(exported: Exported) -> None:
    found = findings(*exported("bytes"))
    assert {finding.first or finding.unasked for finding in found.values()} == {None}
    assert found["texts"].agreed > 65
    assert found["chats"].agreed == 11
    assert found["vocabulary"].agreed == 1
    assert found["special tokens"].agreed == 6


# --- faults of numbers ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Tiny checkpoints by name."""

    @cache
    def checkpoint(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        save_tiny(BASES[name], folder, spread=0.2)
        return folder

    return checkpoint


QUICK = ("a base of rotary positions", "a weight", "an embedding", "a head")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in READERS],
)
def test_the_first_layer_that_differs_is_named(
    name: str,
    checkpoints: Callable[[str], Path],
    first: First,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault = READERS[name]
    checkpoint = checkpoints(fault.base)
    monkeypatch.setattr(*fault.patch)
    bundle = export(checkpoint, tmp_path / "bundle")  # with a passed certificate
    assert fault.words in (first(fault.topic, checkpoint, bundle) or "")


# --- faults of texts, chats and settings ----------------------------------------------------------


def no_merge(document: Json) -> None:
    document["model"]["merges"].pop(40)


def no_token(text: str) -> Callable[[Json], None]:
    """Loses an added token."""

    def edit(document: Json) -> None:
        tokens = document["added_tokens"]
        document["added_tokens"] = [row for row in tokens if row["content"] != text]

    return edit


def flagged(text: str, **flags: bool) -> Callable[[Json], None]:
    """Changes flags of an added token."""

    def edit(document: Json) -> None:
        next(row for row in document["added_tokens"] if row["content"] == text).update(flags)

    return edit


def other_order(document: Json) -> None:
    """Applies the last merges first."""
    document["model"]["merges"].reverse()


def two_ids(document: Json) -> None:
    """Gives two tokens the ids of one another."""
    vocabulary = document["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]


def lost(*keys: str | int) -> Callable[[Json], None]:
    """Loses an item of a list."""
    *path, last = keys

    def edit(document: Json) -> None:
        for key in path:
            document = document[key]
        del document[last]

    return edit


def templated(part: str, other: str = "") -> Callable[[Json], None]:
    """Takes a chat template with another part."""
    assert part in TEMPLATE
    return put("chat_template", value=TEMPLATE.replace(part, other))


TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"

SETTINGS = "generation_config.json"

EDITS: dict[str, tuple[str, Callable[[Json], None], str, str]] = {
    "a merge": (TOKENIZER, no_merge, "vocabulary", "the text of token"),
    "an added token": (TOKENIZER, no_token("漢字"), "texts", "added tokens: "),
    "a special token": (
        TOKENIZER,
        flagged("<|end|>", special=False),
        "texts",
        "the bundle gives \"'<|end|>'\", the publisher's code \"'<|end|>', special\"",
    ),
    "a token with its spaces": (
        TOKENIZER,
        flagged("<note>", lstrip=False),
        "texts",
        "<note> in a text: ids",
    ),
    "a normalizer": (TOKENIZER, put("normalizer", value=None), "texts", "ids[1]: the bundle"),
    "no BOS": (
        TOKENIZER,
        put("post_processor", value=None),
        "texts",
        "'': ids: the bundle gives []",
    ),
    "another template": (
        CONFIG,
        templated("<tool>"),
        "chats",
        "a question: prompt: the bundle gives",
    ),
    "a template without reasoning": (
        CONFIG,
        templated("({{ m.reasoning_content }})"),
        "chats",
        "reasoning: prompt: ",
    ),
    "calls without arguments": (
        CONFIG,
        templated("call.function.arguments", "call.function.name"),
        "chats",
        "a call and its result: prompt: ",
    ),
    "a list of EOS": (
        NAME,
        put("tokens", "eos", value=[1]),
        "special tokens",
        "eos: the bundle gives [1], the publisher's code [1, 5]",
    ),
    "suppressed tokens": (
        NAME,
        put("tokens", "suppressed", value=[7]),
        "special tokens",
        "suppressed: the bundle gives [7], the publisher's code [7, 8]",
    ),
    "a penalty": (
        SETTINGS,
        put("repetition_penalty", value=1.0),
        "special tokens",
        "recommended sampling: repetition_penalty: the bundle gives '1'",
    ),
    "a decoder": (TOKENIZER, put("decoder", value=None), "texts", "decoded: the bundle gives"),
    "a space before words": (
        TOKENIZER,
        put("pre_tokenizer", "add_prefix_space", value=True),
        "texts",
        "ids",
    ),
    "splits of words": (TOKENIZER, put("pre_tokenizer", "use_regex", value=False), "texts", "ids"),
    "a normalized token": (TOKENIZER, flagged("é", normalized=False), "texts", "ids"),
    "a token with spaces after it": (TOKENIZER, flagged("<tool>", rstrip=True), "texts", "ids"),
    "a token between spaces": (TOKENIZER, flagged("<tool>", single_word=True), "texts", "ids"),
    "the order of merges": (TOKENIZER, other_order, "texts", "ids"),
    "two ids": (TOKENIZER, two_ids, "texts", "ids"),
    "no generation prompt": (
        CONFIG,
        templated("add_generation_prompt", "false"),
        "chats",
        "a question: prompt: ",
    ),
    "spaces of messages": (CONFIG, templated(" | trim"), "chats", "spaces and lines: prompt: "),
    "no tools": (CONFIG, templated("tools | tojson", "''"), "chats", "tools: prompt: "),
    "another role": (CONFIG, templated("assistant: ", "model: "), "chats", "a question: prompt: "),
    "BOS": (NAME, put("tokens", "bos", value=1), "special tokens", "bos: the bundle gives 1"),
    "a temperature": (SETTINGS, put("temperature", value=0.6), "special tokens", "temperature"),
    "sampling": (SETTINGS, put("do_sample", value=False), "special tokens", "temperature"),
    "a top_k": (SETTINGS, put("top_k", value=50), "special tokens", "top_k"),
    "a top_p": (SETTINGS, put("top_p", value=1.0), "special tokens", "top_p"),
    "a min_p": (SETTINGS, put("min_p", value=0.0), "special tokens", "min_p"),
}
"""File of a bundle, what a reader made of it, and the topic that names it in which words."""


OF_CHARACTERS: dict[str, tuple[str, Callable[[Json], None], str, str]] = {
    "bytes of unknown characters": (
        TOKENIZER,
        put("model", "byte_fallback", value=False),
        "texts",
        "ids",
    ),
    "spaces of decoded texts": (TOKENIZER, lost("decoder", "decoders", 0), "texts", "decoded"),
    "bytes of decoded texts": (TOKENIZER, lost("decoder", "decoders", 1), "texts", "decoded"),
    "the space before a decoded text": (
        TOKENIZER,
        lost("decoder", "decoders", 3),
        "texts",
        "decoded",
    ),
    "the space before a text": (TOKENIZER, lost("normalizer", "normalizers", 0), "texts", "ids"),
    "spaces of texts": (TOKENIZER, lost("normalizer", "normalizers", 1), "texts", "ids"),
}
"""The same of a tokenizer like those of Llama 2."""


@pytest.mark.parametrize(
    ("tokenizer", "fault"),
    [("bytes", fault) for fault in EDITS]
    + [pytest.param("characters", fault, marks=pytest.mark.slow) for fault in OF_CHARACTERS],
)
def test_a_fault_is_named(
    tokenizer: str, fault: str, exported: Exported, first: First, tmp_path: Path
) -> None:
    file, edit, topic, words = (EDITS if tokenizer == "bytes" else OF_CHARACTERS)[fault]
    checkpoint, bundle = exported(tokenizer)
    copied = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    edit_json(copied, file, edit)
    assert words in (first(topic, checkpoint, copied) or "")
