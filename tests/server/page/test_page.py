"""The chat page in headless Chromium, with a live server behind a gateway that can misbehave."""

import json
import math
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.hosts.node_package import installed_package
from tests.server.live import LiveServer, serving_fp32

DRIVER = Path(__file__).parent / "browser.mjs"
FILES = Path(__file__).parents[3] / "src" / "ortolan" / "server" / "page" / "files"
KEY = "sk-ünique"


def test_files_refer_to_no_absolute_address() -> None:
    for path in FILES.iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not any(part in text for part in ("http:", "https:", '"//', '="/', '("/')), path.name


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/page.js", "text/javascript; charset=utf-8"),
        ("/style.css", "text/css; charset=utf-8"),
        ("/icon.svg", "image/svg+xml"),
    ],
)
def test_media_types(client: httpx2.Client, path: str, media_type: str) -> None:
    response = client.get(path)
    assert response.headers["content-type"] == media_type
    assert response.headers["content-security-policy"].startswith("default-src 'self';")


@pytest.fixture(scope="module")
def keyed(bundles: dict[str, Path]) -> Iterator[LiveServer]:
    with serving_fp32(bundles, keys=frozenset({KEY})) as running:
        yield running


@pytest.fixture(scope="module")
def results(
    server: LiveServer, keyed: LiveServer, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Results of the driver."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium. Run `make software-gpu`, which installs Debian's")
    package = installed_package()  # has puppeteer-core
    folder = tmp_path_factory.mktemp("pictures")
    command = ["node", str(DRIVER), chromium, server.url, keyed.url, KEY, str(folder)]
    done = subprocess.run(command, cwd=package, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    seen: dict[str, Any] = json.loads(done.stdout)
    assert len(list(folder.iterdir())) == 9
    return seen


@pytest.mark.slow
def test_the_page_shows_what_the_server_answers(
    results: dict[str, Any], client: httpx2.Client
) -> None:
    live = results["live"]
    body = json.loads(results["seen"]["Hello."]["body"])
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["temperature"] == 0
    answer = client.post(
        "/v1/chat/completions", json={**body, "stream": False, "stream_options": None}
    ).json()
    (choice,) = answer["choices"]
    following = json.loads(results["seen"]["And?"]["body"])["messages"]
    assert following[2]["content"] == choice["message"]["content"]
    tokens = choice["logprobs"]["content"]
    assert len(tokens) == 12
    assert live["answer"]["note"] == ["Stopped at the maximum of 12 tokens."]
    assert len(live["hints"]) == len(tokens)
    for rows, token in zip(live["hints"], tokens, strict=True):
        (chosen,) = [row for row in rows if row["isChosen"]]
        assert chosen["share"] == share(token["logprob"])
        assert [row["share"] for row in rows[:5]] == [
            share(top["logprob"]) for top in token["top_logprobs"]
        ]
    assert "12 tokens · " in live["figures"][0]
    assert "tokens/s · first after" in live["figures"][0]
    assert live["again"] == live["second"]["content"]
    assert (live["turns"], live["left"]) == (2, 0)
    assert [model["value"] for model in live["models"]] == ["fp32", "int4"]


def share(logprob: float) -> str:
    probability = math.exp(logprob)
    return "< 0.1 %" if probability < 0.001 else f"{100 * probability:.1f} %"


@pytest.mark.slow
@pytest.mark.parametrize("part", ["errors", "keyboard", "models", "text", "tokens"])
def test_a_part_looks_as_it_was_reviewed(
    results: dict[str, Any], part: str, snapshot: SnapshotAssertion
) -> None:
    assert results[part] == snapshot


@pytest.mark.slow
def test_stop_ends_the_request_and_keeps_the_text(results: dict[str, Any]) -> None:
    stop = results["stop"]
    assert stop["during"]["hint"] == [{"text": "word0␣", "share": "60.7 %", "isChosen": True}]
    assert {"Stop", "Send"} & set(stop["during"]["buttons"]) == {"Stop"}
    assert len(stop["during"]["busy"]) == 1
    assert stop["note"] == ["Stopped."]
    assert stop["content"][0].startswith("word0 word1 word2")
    assert len(stop["content"][0]) < 1000
    assert results["seen"]["slow"]["written"] == "part"
    question, answer, _ = stop["following"]
    assert (question["content"], answer["content"].strip()) == ("slow", stop["content"][0].strip())


@pytest.mark.slow
def test_markdown_becomes_the_same_elements_in_any_pieces(results: dict[str, Any]) -> None:
    markdown = results["markdown"]
    first, *others = markdown["all"]
    assert others == [first] * 3
    assert '<td data-align="center"><code>x | y</code></td>' in first
    assert markdown["copied"] == (DRIVER.parent / "sample.md").read_text(encoding="utf-8")
    in_code, late = markdown["hints"]
    assert in_code[0]["text"] == "`x␣"
    assert late[0]["isChosen"]
    # of 130 tokens; if all nodes were replaced, it would be thousands
    assert results["nodes"] < 300


@pytest.mark.slow
def test_markdown_runs_no_script_and_loads_nothing(results: dict[str, Any]) -> None:
    markdown = results["markdown"]
    attacks = markdown["attacks"]
    assert (attacks["hacked"], attacks["elements"], attacks["events"]) == (0, 0, [])
    assert markdown["requests"] == 1  # the question
    assert attacks["links"]
    for address, rel, target in attacks["links"]:
        assert address.startswith("https://example.org/")
        assert (rel, target) == ("noopener noreferrer", "_blank")


@pytest.mark.slow
def test_a_reload_keeps_the_conversation(results: dict[str, Any]) -> None:
    reload = results["reload"]
    before, after = reload["states"]
    assert after == before
    assert before["turns"] == ["thinking", "sample"]
    assert before["values"] == ["int4", "A draft", "Be brief.", "0.5", ""]
    assert reload["shown"][0]["share"] == "60.7 %"
    assert (reload["cut"]["notes"], reload["cut"]["busy"]) == (["Stopped."], 0)
    following = reload["following"]["messages"]
    assert reload["following"]["model"] == "int4"
    roles = ["system", *("user", "assistant") * 3, "user"]
    assert [message["role"] for message in following] == roles
    assert following[2]["reasoning_content"] == "Hm."
    assert following[6]["content"].startswith("word0 word1")
    assert reload["tight"] == {"isSame": True, "tokens": 0}  # text comes first
    assert reload["full"] == [
        "A reload will lose this conversation: the browser has no room for it."
    ]
    assert reload["lost"] == reload["left"] == reload["broken"] == []


@pytest.mark.slow
def test_a_full_queue_is_tried_again(results: dict[str, Any]) -> None:
    assert results["seen"]["full"]["calls"] == 3


@pytest.mark.slow
def test_a_key_is_asked_for_and_kept_in_the_tab(results: dict[str, Any]) -> None:
    key = results["key"]
    assert key["cancelled"] == ["The server needs a key"]
    assert key["answer"]["content"][0]
    assert key["stored"] == [2, 0]  # the key, and the conversation without it
    assert key["kept"]
    assert KEY not in key["kept"]


@pytest.mark.slow
def test_a_narrow_dark_window(results: dict[str, Any]) -> None:
    narrow = results["narrow"]
    assert max(narrow["widths"]) <= 0
    assert 0 <= narrow["box"]["left"] <= narrow["box"]["right"] <= 360
    assert narrow["before"] == []
    assert narrow["dark"] != narrow["light"]


@pytest.mark.slow
def test_no_request_leaves_the_server_and_no_rule_is_broken(
    results: dict[str, Any], keyed: LiveServer
) -> None:
    gateway = urlsplit(results["requests"][0]).netloc
    for url in results["requests"]:
        assert url.startswith((f"http://{gateway}/llm/", f"{keyed.url}/")), url
    assert all(problem.startswith("Failed to load") for problem in results["problems"])
