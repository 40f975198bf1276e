"""Texts and messages to tokens, and tokens back to text."""

from typing import Any

import httpx2
import pytest
from tests.server.calls import post_ok, refusal

TEXT = "What is the capital of France ?"
MESSAGES = [{"role": "user", "content": "Hi"}]


def test_tokens_and_text(client: httpx2.Client) -> None:
    tokens = post_ok(client, "/tokenize", {"content": TEXT})
    assert tokens["count"] == len(tokens["tokens"]) > 5
    back = post_ok(client, "/detokenize", {"tokens": tokens["tokens"]})
    assert back == {"content": TEXT, "prompt": TEXT}
    special = post_ok(client, "/tokenize", {"prompt": TEXT})["tokens"]
    assert special[-tokens["count"] :] == tokens["tokens"]
    plain = post_ok(client, "/tokenize", {"prompt": TEXT, "add_special_tokens": False})
    assert plain == tokens


def test_messages_become_tokens(client: httpx2.Client) -> None:
    chat = post_ok(client, "/tokenize", {"messages": MESSAGES})
    assert chat["count"] > 2
    without = post_ok(client, "/tokenize", {"messages": MESSAGES, "add_generation_prompt": False})
    assert without["count"] < chat["count"]
    info = client.get("/tokenizer_info", params={"model": "fp32"}).json()
    assert (info["bos_token"], info["eos_token"]) == ("<bos>", "<eos>")
    assert "add_generation_prompt" in info["chat_template"]
    assert info["model_max_length"] == chat["max_model_len"]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/tokenize", {}, "Send one of content"),
        ("/tokenize", {"content": "a", "prompt": "a"}, "Send one of content"),
        ("/tokenize", {"with_pieces": True}, "with_pieces is not supported"),
        ("/detokenize", {"tokens": [-1]}, "got -1"),
    ],
)
def test_wrong_bodies_say_what_is_wrong(
    client: httpx2.Client, path: str, body: Any, words: str
) -> None:
    assert words in refusal(client, path, body)["message"]
