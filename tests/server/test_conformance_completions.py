"""Behavior that the tests of llama.cpp's server and of vLLM expect of completions and tokens.

`benchmarks/results/server-conformance.md` lists the cases with the peers' tests.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from tests.server.events import post_stream

PATH = "/v1/completions"
PROMPT = "I believe the meaning of life is"


def post(client: httpx2.Client, **body: Any) -> httpx2.Response:
    default = {"model": "fp32", "prompt": PROMPT, "max_tokens": 8, "ignore_eos": True}
    return client.post(PATH, json={**default, **body})


def ask(client: httpx2.Client, **body: Any) -> Any:
    response = post(client, **body)
    assert response.status_code == 200, response.text
    return response.json()


def text(client: httpx2.Client, **body: Any) -> str:
    answer: str = ask(client, **body)["choices"][0]["text"]
    return answer


def stream(client: httpx2.Client, **body: Any) -> list[Any]:
    """The chunks of an answer, without the last event."""
    default = {"model": "fp32", "prompt": PROMPT, "max_tokens": 8, "ignore_eos": True}
    *chunks, last = post_stream(client, PATH, {**default, **body})
    assert last == "[DONE]"
    return chunks


def tokens_of(client: httpx2.Client, content: str, **more: Any) -> list[int]:
    response = client.post("/tokenize", json={"model": "fp32", "content": content, **more})
    assert response.status_code == 200, response.text
    tokens: list[int] = response.json()["tokens"]
    return tokens


def test_a_completion_has_usage_and_a_reason(client: httpx2.Client) -> None:
    answer = ask(client)
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length"
    usage = answer["usage"]
    assert usage["completion_tokens"] == 8
    assert usage["prompt_tokens"] == len(tokens_of(client, PROMPT, add_special=True))
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8


def test_a_stream_joins_to_the_completion(client: httpx2.Client) -> None:
    options = {"temperature": 1, "seed": 5}
    chunks = stream(client, **options)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text(client, **options)
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]


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


def test_other_seeds_give_other_completions(client: httpx2.Client) -> None:
    assert len({text(client, seed=seed, temperature=1) for seed in range(4)}) == 4


def test_a_cached_prompt_changes_nothing_but_the_count(client: httpx2.Client) -> None:
    options = {"prompt": "Whole blocks are cached. " * 6, "seed": 42, "temperature": 1}
    first, second = ask(client, **options), ask(client, **options)
    assert second["choices"] == first["choices"]
    cached = [
        answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (first, second)
    ]
    assert cached[0] == 0 < cached[1]


def test_a_prompt_beyond_the_context_is_rejected_and_never_cut(client: httpx2.Client) -> None:
    response = post(client, prompt=PROMPT * 100)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context-length"


def test_prompts_of_text_and_of_tokens_are_the_same(client: httpx2.Client) -> None:
    tokens = tokens_of(client, PROMPT, add_special=True)
    expected = text(client)
    for prompt in (tokens, [tokens], [PROMPT]):
        assert text(client, prompt=prompt) == expected
    choices = ask(client, prompt=[tokens, PROMPT], n=2, temperature=0)["choices"]
    assert [choice["text"] for choice in choices] == [expected] * 4
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (None, "prompt"),
        ([], "prompt"),
        ([[]], "prompt"),
        ([98765432], "98765432"),
        ([-1], "-1"),
        ([[-1]], "-1"),
        ([1, 2, "text", 3], "prompt"),
        ({"text": "x"}, "prompt"),
        ([[["x"]]], "prompt"),
    ],
)
def test_wrong_prompts_are_a_400(client: httpx2.Client, prompt: Any, words: str) -> None:
    response = post(client, prompt=prompt)
    assert response.status_code == 400, response.text
    assert words in response.json()["error"]["message"]


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_logprobs_of_each_token(client: httpx2.Client, count: int) -> None:
    choice = ask(client, logprobs=count, temperature=1, seed=2)["choices"][0]
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == 8
    assert all(value <= 0 for value in logprobs["token_logprobs"])
    for top, token in zip(logprobs["top_logprobs"], logprobs["tokens"], strict=True):
        assert max(count, 1) <= len(top) <= count + 1
        assert token in top  # the chosen token is always among them


def test_no_logprobs_unless_they_are_requested(client: httpx2.Client) -> None:
    assert ask(client)["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("count", [21, -1])
def test_too_many_logprobs_are_a_400(client: httpx2.Client, count: int, streams: bool) -> None:
    assert post(client, logprobs=count, stream=streams).status_code == 400
    assert text(client)


def test_offsets_of_a_stream_equal_those_of_the_completion(client: httpx2.Client) -> None:
    options = {"logprobs": 0, "stop": ["\n\n"], "seed": 3, "temperature": 1}
    whole = ask(client, **options)["choices"][0]
    parts = [c["choices"][0]["logprobs"] or {"text_offset": []} for c in stream(client, **options)]
    offsets = [offset for part in parts for offset in part["text_offset"]]
    assert offsets == whole["logprobs"]["text_offset"]
    starts = [0]
    for token in whole["logprobs"]["tokens"][:-1]:
        starts.append(starts[-1] + len(token))
    assert offsets == starts


def test_n_streams_are_told_apart_by_their_index(client: httpx2.Client) -> None:
    options = {"n": 3, "temperature": 1, "seed": 42, "max_tokens": 20, "ignore_eos": False}
    texts = [""] * 3
    reasons = []
    for chunk in stream(client, **options):
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert len(reasons) == 3
    assert texts == [choice["text"] for choice in ask(client, **options)["choices"]]
    assert len(set(texts)) == 3


@pytest.mark.parametrize("with_usage", [False, True])
def test_usage_ends_a_stream_if_it_is_requested(client: httpx2.Client, with_usage: bool) -> None:
    *chunks, last = stream(client, stream_options={"include_usage": with_usage})
    if not with_usage:
        assert all("usage" not in chunk for chunk in [*chunks, last])
        return
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize("options", [{}, {"include_usage": True}, {"include_usage": None}])
def test_stream_options_need_a_stream(client: httpx2.Client, options: Any) -> None:
    response = post(client, stream_options=options)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stream_options"


def test_a_stop_text_ends_a_stream_and_is_not_part_of_it(client: httpx2.Client) -> None:
    whole = text(client, max_tokens=24)
    stop = whole[9:12]
    expected = whole[: whole.index(stop)]
    chunks = stream(client, max_tokens=24, stop=[stop, "never"])
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_biased_tokens_do_not_appear(client: httpx2.Client) -> None:
    tokens = set(ask(client, max_tokens=24, logprobs=0)["choices"][0]["logprobs"]["tokens"])
    bias = {str(token): -100 for token in tokens_of(client, "".join(sorted(tokens)))}
    answer = ask(client, max_tokens=24, logprobs=0, logit_bias=bias)
    assert tokens.isdisjoint(answer["choices"][0]["logprobs"]["tokens"])


def test_ignored_ends_do_not_end_a_completion(client: httpx2.Client) -> None:
    likely_end = {"96": 100}
    assert ask(client, ignore_eos=False, logit_bias=likely_end)["usage"]["completion_tokens"] == 1
    assert ask(client, logit_bias=likely_end)["usage"]["completion_tokens"] == 8


def test_text_to_tokens_and_back(client: httpx2.Client) -> None:
    content = "What is the capital of France ?"
    tokens = tokens_of(client, content)
    assert len(tokens) > 5
    body = {"model": "fp32", "tokens": tokens}
    assert client.post("/detokenize", json=body).json() == {"content": content, "prompt": content}
    assert client.post("/detokenize", json={"model": "fp32", "tokens": [-1]}).status_code == 400
    assert client.post("/tokenize", json={"model": "fp32", "with_pieces": True}).status_code == 400


def test_cached_tokens_are_part_of_the_metrics(client: httpx2.Client) -> None:
    for _ in range(2):
        ask(client, prompt="Metrics count the cached tokens of prompts. " * 4)
    lines = client.get("/metrics").text.splitlines()
    (line,) = [x for x in lines if x.startswith('ortolan_cached_tokens_total{model="fp32"}')]
    assert float(line.rpartition(" ")[2]) > 0
