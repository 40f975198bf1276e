"""Single faults of our readers, which the certificate cannot see: the witness names each."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cases.comparison import save_tiny
from tests.runtime.damaged_bundles import Json, edit_json, put
from tests.runtime.tiny_tokenizers import byte_level
from tests.tiny.decoders import LLAMA
from tokenizers import AddedToken, normalizers

import ortolan
from ortolan.export.witness.brief import Brief, Finding
from ortolan.export.witness.child import answers
from ortolan.modeling.families import decoder, rope
from ortolan.modeling.weights import Piece
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
}


def write(folder: Path) -> None:
    """A decoder with a tokenizer, a chat template and settings of `generate`."""
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken("<note>", lstrip=True, normalized=False)])
    values = {"vocab_size": 420, "bos_token_id": 0, "eos_token_id": 1}
    rotary = {"rope_type": "default", "rope_theta": 500.0}
    save_tiny(LLAMA | values | {"rope_parameters": rotary}, folder, spread=0.2)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    write(folder)
    return folder


@pytest.fixture(scope="module")
def bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(checkpoint, tmp_path_factory.mktemp("bundle") / "bundle")


def export(checkpoint: Path, folder: Path) -> Path:
    ortolan.export(checkpoint, folder, options=ortolan.ExportOptions(proof="quick"))
    return folder


def findings(checkpoint: Path, bundle: Path) -> dict[str, Finding]:
    """What the witness finds, by topic."""
    brief = Brief(bundle=str(bundle), checkpoint=str(checkpoint), threads=1)
    return {finding.topic: finding for finding in answers(brief) if finding.topic}


def test_a_bundle_without_faults_agrees(checkpoint: Path, bundle: Path) -> None:
    found = findings(checkpoint, bundle)
    assert {finding.first or finding.unasked for finding in found.values()} == {None}
    assert found["texts"].agreed > 65
    assert found["chats"].agreed == 11
    assert found["vocabulary"].agreed == 1
    assert found["special tokens"].agreed == 6


# --- faults of numbers ----------------------------------------------------------------------------


def scaled(published: str, ours: Callable[[Piece, torch.Tensor], torch.Tensor]) -> Any:
    """Reads one weight one percent too large."""

    def read(piece: Piece, stored: torch.Tensor) -> torch.Tensor:
        rows = ours(piece, stored)
        return rows * 1.01 if piece.name == published else rows

    return read


READERS: dict[str, tuple[object, str, Any, str]] = {
    "a base of rotary positions": (
        decoder,
        "read_rotary",
        lambda *arguments, own=rope.read_rotary, **named: replace(
            own(*arguments, **named), theta=10_000.0
        ),
        "first at model.layers.0",
    ),
    "a weight": (
        Piece,
        "ours",
        scaled("model.layers.1.mlp.up_proj.weight", Piece.ours),
        "first at model.layers.1",
    ),
    "an embedding": (
        Piece,
        "ours",
        scaled("model.embed_tokens.weight", Piece.ours),
        "first at the embeddings",
    ),
    "a head": (
        Piece,
        "ours",
        scaled("lm_head.weight", Piece.ours),
        "first at the head, after layers that agree",
    ),
}
"""Where a reader is, and what replaces it; and words that the witness finds."""


@pytest.mark.parametrize("fault", READERS)
def test_the_first_layer_that_differs_is_named(
    fault: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, reader, words = READERS[fault]
    monkeypatch.setattr(owner, name, reader)
    bundle = export(checkpoint, tmp_path / "bundle")  # with a passed certificate
    first = findings(checkpoint, bundle)["logits"].first
    assert first is not None
    assert words in first


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


def templated(source: str) -> Callable[[Json], None]:
    """Takes another chat template."""
    return put("chat_template", value=source)


TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"

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
        templated(TEMPLATE.replace("<tool>", "")),
        "chats",
        "a question: prompt: the bundle gives",
    ),
    "a template without reasoning": (
        CONFIG,
        templated(TEMPLATE.replace("({{ m.reasoning_content }})", "")),
        "chats",
        "reasoning: prompt: ",
    ),
    "calls without arguments": (
        CONFIG,
        templated(TEMPLATE.replace("call.function.arguments", "call.function.name")),
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
        "generation_config.json",
        put("repetition_penalty", value=1.0),
        "special tokens",
        "recommended sampling: repetition_penalty: the bundle gives '1'",
    ),
}
"""File of a bundle, what a reader made of it, and the topic that names it in which words."""


@pytest.mark.parametrize("fault", EDITS)
def test_a_fault_is_named(fault: str, checkpoint: Path, bundle: Path, tmp_path: Path) -> None:
    file, edit, topic, words = EDITS[fault]
    copied = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    edit_json(copied, file, edit)
    first = findings(checkpoint, copied)[topic].first
    assert first is not None
    assert words in first
