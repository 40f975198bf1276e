"""Completions: the same texts and log-probabilities as in this process, streamed or not."""

from typing import Any, cast

import httpx2
import pytest
from tests.server.events import post_stream

from ortolan.runtime import Decoder, Tokenizer, TokenLogprobs
from ortolan.server.api.text_logprobs import TextLogprobsWriter

PATH = "/v1/completions"
PROMPT = "One two three."


def ask(client: httpx2.Client, **body: Any) -> Any:
    response = client.post(PATH, json={"model": "fp32", "temperature": 0, **body})
    assert response.status_code == 200, response.text
    return response.json()


def joined(events: list[Any], index: int) -> dict[str, Any]:
    """A streamed choice as a whole one."""
    parts = [e["choices"][0] for e in events[:-1] if e["choices"][0]["index"] == index]
    logprobs = [part["logprobs"] for part in parts if part["logprobs"] is not None]
    return {
        "index": index,
        "text": "".join(part["text"] for part in parts),
        "finish_reason": parts[-1]["finish_reason"],
        "logprobs": {key: [x for each in logprobs for x in each[key]] for key in logprobs[0]}
        if logprobs
        else None,
    }


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("logprobs", [None, 0, 2])
def test_streamed_parts_join_to_the_choice(
    client: httpx2.Client, echo: bool, logprobs: int | None
) -> None:
    body = {"prompt": [PROMPT, "Four"], "n": 2, "max_tokens": 9, "temperature": 0.8, "seed": 3}
    body |= {"echo": echo, "logprobs": logprobs, "ignore_eos": True}
    whole = ask(client, **body)
    events = post_stream(client, PATH, {"model": "fp32", **body})
    assert [joined(events, index) for index in range(4)] == whole["choices"]
    assert all(choice["text"].startswith(PROMPT) == echo for choice in whole["choices"][:2])


def test_an_echo_scores_the_prompt(client: httpx2.Client, models: dict[str, Decoder]) -> None:
    model = models["fp32"]
    (choice,) = ask(client, prompt=PROMPT, echo=True, logprobs=2, max_tokens=0)["choices"]
    expected = model.generate(PROMPT, max_new_tokens=0, prompt_logprobs=2).prompt_logprobs
    assert expected is not None
    logprobs = choice["logprobs"]
    assert choice["text"] == PROMPT
    assert choice["finish_reason"] == "length"
    assert logprobs["token_logprobs"] == [None, *(entry.logprob for entry in expected)]
    assert logprobs["top_logprobs"][0] is None
    assert all(2 <= len(top) <= 3 for top in logprobs["top_logprobs"][1:])  # with the token itself


def test_offsets_are_places_in_the_text(client: httpx2.Client) -> None:
    body = {"prompt": "Hm. 12", "echo": True, "logprobs": 0, "max_tokens": 6, "ignore_eos": True}
    (choice,) = ask(client, **body)["choices"]
    tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert len(tokens) == len(offsets) == 12
    for token, offset in zip(tokens, offsets, strict=True):
        assert token in ("<bos>", "<eos>") or choice["text"].startswith(token, offset)


class Bytes:
    """A tokenizer whose tokens are bytes; 256 is special."""

    def special_ids(self) -> list[int]:
        return [256]

    def token_bytes(self, token: int) -> bytes:
        return b"<s>" if token == 256 else bytes([token])


def test_offsets_count_characters_and_no_special_tokens() -> None:
    writer = TextLogprobsWriter(cast(Tokenizer, Bytes()))
    entries = [TokenLogprobs(token=byte, logprob=-1.0, top=()) for byte in "aäb".encode()]
    start, rest = writer.write(entries[:2], first=256), writer.write(entries[2:])
    assert start.token_logprobs == [None, -1.0, -1.0]
    assert start.text_offset + rest.text_offset == [0, 0, 1, 1, 2]


def test_scoring_token_ids_counts_no_new_tokens(
    client: httpx2.Client, models: dict[str, Decoder]
) -> None:
    tokenizer = models["fp32"].tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode(PROMPT)
    answer = ask(client, prompt=[ids, ids[:3]], echo=True, logprobs=1, max_tokens=0)
    lengths = [len(choice["logprobs"]["token_logprobs"]) for choice in answer["choices"]]
    assert lengths == [len(ids), 3]
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["prompt_tokens"] == len(ids) + 3


def test_no_tokens_may_be_asked_for(client: httpx2.Client) -> None:
    response = client.post(PATH, json={"model": "fp32", "prompt": PROMPT, "max_tokens": 0})
    answer = response.json()
    assert answer["choices"][0]["text"] == ""
    assert answer["usage"]["completion_tokens"] == 0
    response = client.post(PATH, json={"model": "fp32", "prompt": PROMPT, "max_tokens": -2})
    assert response.json()["error"]["param"] == "max_tokens"


@pytest.mark.parametrize("prompt", [[], [[]], "", [""], [1.5], {}, None, [["a"]], ["a", 1]])
def test_wrong_prompts_are_client_errors(client: httpx2.Client, prompt: Any) -> None:
    response = client.post(PATH, json={"model": "fp32", "prompt": prompt, "max_tokens": 1})
    if response.status_code != 200:  # a tokenizer may add tokens to an empty text
        assert response.status_code == 400, response.text
        assert response.json()["error"]["message"]
    else:
        assert prompt in ("", [""])
