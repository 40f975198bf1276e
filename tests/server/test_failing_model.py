"""A model whose calls fail: answers, `/ready` and metrics."""

import logging
from pathlib import Path

import httpx2
import pytest
from tests.runtime.serving.faults import failing
from tests.server.live import LiveServer, serving_fp32, stats, wait_until

from ortolan.server import models as server_models
from ortolan.server.models import Models

PATH = "/v1/completions"
BODY = {"model": "fp32", "prompt": "Hi", "max_tokens": 3, "ignore_eos": True}


def ask(client: httpx2.Client) -> httpx2.Response:
    return client.post(PATH, json=BODY)


def metric(client: httpx2.Client, name: str) -> list[str]:
    lines = client.get("/metrics").text.splitlines()
    return [line.split("}")[1].strip() for line in lines if line.startswith(f"ortolan_{name}{{")]


def test_a_call_that_fails_once_is_repeated(server: LiveServer, client: httpx2.Client) -> None:
    before, failed_calls = ask(client), int(*metric(client, "failed_calls_total"))
    with failing(lambda call: call == 1):
        answer = ask(client)
    assert answer.json()["choices"] == before.json()["choices"]
    assert client.get("/ready").status_code == 200
    assert metric(client, "failed_calls_total") == [f"{failed_calls + 1}"]
    assert metric(client, "requests_failed_total") == []


@pytest.mark.parametrize("asks", [True, False], ids=["by-a-request", "by-ready"])
def test_a_model_that_fails_is_not_ready_and_loaded_again(
    server: LiveServer, client: httpx2.Client, monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    monkeypatch.setattr(server_models, "RELOAD_PAUSE_S", 0.0)
    before, old = ask(client).json()["choices"], server.models.loaded[0]
    with failing(lambda call: True):
        for _ in range(2):
            answer = ask(client)
            assert answer.status_code == 500
            assert answer.json()["error"]["code"] == "compute"
        monkeypatch.setattr(Models, "_may_reload", lambda self, name, users: False)
        answer = client.get("/ready")
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "failing"
        assert metric(client, "failing") == ["1"]
        assert metric(client, "requests_failed_total") == ["2"]
        assert metric(client, "requests_refused_total") == []
    monkeypatch.undo()
    monkeypatch.setattr(server_models, "RELOAD_PAUSE_S", 0.0)
    if asks:
        assert ask(client).json()["choices"] == before
    wait_until(lambda: client.get("/ready").status_code == 200)
    assert server.models.loaded[0] is not old
    assert ask(client).json()["choices"] == before
    assert stats(server).failed == {}


def test_a_model_that_goes_on_failing_is_loaded_again_only_now_and_then(
    bundles: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        serving_fp32(bundles) as server,
        caplog.at_level(logging.INFO, "ortolan.server"),
        failing(lambda call: True),
    ):
        assert {server.call("POST", PATH, json=BODY).status_code for _ in range(8)} == {500}
    said = [record.getMessage() for record in caplog.records]
    assert said.count("fp32 fails, and is loaded again") == 1
