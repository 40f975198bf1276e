"""Completions: the same texts and log-probabilities as in this process, streamed or not."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import httpx2
import pytest
from tests.server.calls import chunks, post_ok

from ortolan.runtime import Decoder, Sampling, Tokenizer, TokenLogprobs
from ortolan.server.api.logprobs import TextLogprobsWriter

PATH = "/v1/completions"
PROMPT = "I believe the meaning of life is"
DEFAULTS = {"prompt": PROMPT, "max_tokens": 8, "ignore_eos": True}


def ask(client: httpx2.Client, **body: Any) -> Any:
    return post_ok(client, PATH, {**DEFAULTS, **body})


def text(client: httpx2.Client, **body: Any) -> str:
    answer: str = ask(client, **body)["choices"][0]["text"]
    return answer


def stream(client: httpx2.Client, **body: Any) -> list[Any]:
    return chunks(client, PATH, {**DEFAULTS, **body})


def tokens_of(client: httpx2.Client, content: str, **more: Any) -> list[int]:
    tokens: list[int] = post_ok(client, "/tokenize", {"content": content, **more})["tokens"]
    return tokens


def joined(events: list[Any], index: int) -> dict[str, Any]:
    """A streamed choice as a whole one."""
    parts = [e["choices"][0] for e in events if e["choices"][0]["index"] == index]
    logprobs = [part["logprobs"] for part in parts if part["logprobs"] is not None]
    *reasons, reason = [part["finish_reason"] for part in parts]
    assert set(reasons) <= {None}
    return {
        "index": index,
        "text": "".join(part["text"] for part in parts),
        "finish_reason": reason,
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
    body |= {"echo": echo, "logprobs": logprobs, "stop": ["\n\n"]}
    choices = ask(client, **body)["choices"]
    events = stream(client, **body)
    assert [joined(events, index) for index in range(4)] == choices
    assert len({choice["text"] for choice in choices}) == 4
    assert all(choice["text"].startswith(PROMPT) == echo for choice in choices[:2])
    assert [choice["finish_reason"] for choice in choices] == ["length"] * 4


def test_usage_ends_a_stream_if_it_is_requested(client: httpx2.Client) -> None:
    *events, last = stream(client, stream_options={"include_usage": True})
    assert all(event["usage"] is None for event in events)
    prompt = len(tokens_of(client, PROMPT, add_special=True))
    counts = {name: n for name, n in last["usage"].items() if name.endswith("tokens")}
    assert last["choices"] == []
    assert counts == {"prompt_tokens": prompt, "completion_tokens": 8, "total_tokens": prompt + 8}
    assert all("usage" not in event for event in stream(client))


def test_seeds_above_32_bits_are_those_of_the_model(
    client: httpx2.Client, models: dict[str, Decoder]
) -> None:
    sampling = Sampling(temperature=1.0, seed=2**32 + 5)
    options: Any = {"max_new_tokens": 24, "ignore_eos": True, "sampling": sampling}
    with models["fp32"].serve(slots=2) as service:
        expected = service.submit(PROMPT, **options).result().text
    assert text(client, max_tokens=24, temperature=1, seed=2**32 + 5) == expected
    assert text(client, max_tokens=24, temperature=1, seed=5) != expected


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_seed_repeats_a_completion_alone_and_among_others(
    client: httpx2.Client, temperature: float
) -> None:
    options = {"seed": 42, "temperature": temperature, "max_tokens": 24}
    alone = text(client, **options)

    def other(number: int) -> str:
        return text(client, prompt=f"{number} other prompts", seed=number, temperature=1)

    with ThreadPoolExecutor(8) as pool:
        busy = [pool.submit(other, number) for number in range(5)]
        among = [pool.submit(text, client, **options) for _ in range(3)]
        assert [future.result() for future in among] == [alone] * 3
        assert all(future.result() for future in busy)


def test_a_cached_prompt_changes_nothing_but_the_count(client: httpx2.Client) -> None:
    options = {"prompt": "Whole blocks are cached. " * 6, "seed": 42, "temperature": 1}
    answers = [ask(client, **options) for _ in range(2)]
    assert answers[0]["choices"] == answers[1]["choices"]
    cached = [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in answers]
    assert cached[0] == 0 < cached[1]


def test_prompts_of_text_and_of_tokens_are_the_same(client: httpx2.Client) -> None:
    tokens = tokens_of(client, PROMPT, add_special=True)
    expected = text(client)
    for prompt in (tokens, [tokens], [PROMPT]):
        assert text(client, prompt=prompt) == expected
    choices = ask(client, prompt=[tokens, PROMPT], n=2, temperature=0)["choices"]
    assert [choice["text"] for choice in choices] == [expected] * 4
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]


@pytest.mark.parametrize("count", [0, 1, 20])
def test_logprobs_of_each_token(client: httpx2.Client, count: int) -> None:
    logprobs = ask(client, logprobs=count, temperature=1, seed=2)["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == 8
    assert all(value <= 0 for value in logprobs["token_logprobs"])
    for top, token in zip(logprobs["top_logprobs"], logprobs["tokens"], strict=True):
        assert max(count, 1) <= len(top) <= count + 1
        assert token in top  # the chosen token is always among them


def test_an_echo_scores_the_prompt(client: httpx2.Client, models: dict[str, Decoder]) -> None:
    (choice,) = ask(client, echo=True, logprobs=2, max_tokens=0)["choices"]
    expected = models["fp32"].generate(PROMPT, max_new_tokens=0, prompt_logprobs=2).prompt_logprobs
    assert expected is not None
    logprobs = choice["logprobs"]
    assert (choice["text"], choice["finish_reason"]) == (PROMPT, "length")
    assert logprobs["token_logprobs"] == [None, *(entry.logprob for entry in expected)]
    assert logprobs["top_logprobs"][0] is None
    assert all(2 <= len(top) <= 3 for top in logprobs["top_logprobs"][1:])  # with the token itself


def test_offsets_are_places_in_the_text(client: httpx2.Client) -> None:
    (choice,) = ask(client, prompt="Hm. 12", echo=True, logprobs=0, max_tokens=6)["choices"]
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


def test_no_tokens_may_be_asked_for_and_the_default_is_16(client: httpx2.Client) -> None:
    answer = ask(client, max_tokens=0)
    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == ("", 0)
    assert ask(client, max_tokens=None)["usage"]["completion_tokens"] == 16


def test_a_stop_text_ends_a_stream_and_is_not_part_of_it(client: httpx2.Client) -> None:
    whole = text(client, max_tokens=24)
    stop = whole[9:12]
    choice = joined(stream(client, max_tokens=24, stop=[stop, "never"]), 0)
    assert choice["text"] == whole[: whole.index(stop)]
    assert choice["finish_reason"] == "stop"


def test_biased_tokens_do_not_appear(client: httpx2.Client) -> None:
    options = {"max_tokens": 24, "logprobs": 0}
    tokens = set(ask(client, **options)["choices"][0]["logprobs"]["tokens"])
    bias = {str(token): -100 for token in tokens_of(client, "".join(sorted(tokens)))}
    (choice,) = ask(client, **options, logit_bias=bias)["choices"]
    assert tokens.isdisjoint(choice["logprobs"]["tokens"])


def test_ignored_ends_do_not_end_a_completion(client: httpx2.Client) -> None:
    likely_end = {"96": 100}
    assert ask(client, ignore_eos=False, logit_bias=likely_end)["usage"]["completion_tokens"] == 1
    assert ask(client, logit_bias=likely_end)["usage"]["completion_tokens"] == 8


def test_an_empty_text_is_a_prompt_if_the_tokenizer_adds_tokens(client: httpx2.Client) -> None:
    for prompt in ("", [""]):
        assert ask(client, prompt=prompt)["usage"]["prompt_tokens"] == 1
