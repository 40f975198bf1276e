"""Tiny decoders with a chat template."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.runtime import packed_bundles
from tests.runtime.tiny_decoder import CONTEXT, tokenizer_json, write_bundle

from ortolan.runtime import Decoder, load
from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.chat.reply import Reply

TEMPLATE = (
    "{% for m in messages %}<bos>{{ m.role[0] }}:{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<bos>a:{% endif %}"
    "{% if tools %}{# <tool_call> </think> #}{% endif %}"
)
USER = {"role": "user", "content": "Hi."}
BOS, EOS = 95, 96


def chat_model(
    folder: Path,
    others: dict[str, bytes] | None = None,
    *,
    tokens: Tokens | None = None,
    context_length: int = CONTEXT,
    special: Sequence[str] = ("<bos>", "<eos>"),
) -> Decoder:
    """Write a bundle and load it; `others` are files in place of the template."""
    files = {"chat_template.jinja": TEMPLATE.encode()} if others is None else others
    bundle = write_bundle(
        folder / "bundle",
        tokenizer=tokenizer_json(special),
        tokens=Tokens(eos=(EOS,)) if tokens is None else tokens,
        others=files,
        context_length=context_length,
    )
    return load(bundle.path, Decoder)


def packed_chat_models(folder: Path, kinds: Sequence[str], template: str) -> dict[str, Decoder]:
    """Write and load one bundle of each kind of `packed_bundles`."""
    files = {"chat_template.jinja": template.encode()}
    return {
        kind: load(
            packed_bundles.write(folder / kind, kind, group=64, has_text=True, others=files).path,
            Decoder,
            threads=1,
        )
        for kind in kinds
    }


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """A message without the ids of its calls, which differ in every reply."""
    calls = [{**call, "id": ""} for call in message.get("tool_calls", ())]
    return {**message, "tool_calls": calls}


def assert_same(got: Reply, expected: Reply) -> None:
    """Compare replies to the bit."""
    assert got.completion.tokens == expected.completion.tokens
    assert got.completion.logprobs == expected.completion.logprobs
    assert got.completion.finish_reason == expected.completion.finish_reason
    assert without_ids(got.message) == without_ids(expected.message)
