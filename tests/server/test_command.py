"""`ortolan serve`: its start, its errors and its end."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import REPOSITORY, error_line, run_here
from tests.runtime.tiny_adapters import random_factors, write_adapter

from ortolan.cli import serve
from ortolan.runtime import open_bundle
from ortolan.server import Settings
from ortolan.server import run as run_module


class Started:
    """A running `ortolan serve`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []
        assert process.stderr is not None
        for line in process.stderr:
            self.lines.append(line)
            if found := re.search(r"listening on (http://\S+)", line):
                self.url = found[1]
                break
        else:
            raise AssertionError("".join(self.lines))
        self.rest = threading.Thread(target=lambda: self.lines.extend(process.stderr or ()))
        self.rest.start()

    def stop(self, number: signal.Signals) -> int:
        """Send a signal and return the exit status; `lines` are then complete."""
        self.process.send_signal(number)
        status = self.process.wait(60)
        self.rest.join()
        return status


@contextmanager
def started(*arguments: str | Path, **environment: str) -> Iterator[Started]:
    process = subprocess.Popen(
        [sys.executable, "-m", "ortolan", "serve", "--port", "0", "--threads", "1"]
        + [str(argument) for argument in arguments],
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": "src", **environment},
    )
    with process:
        try:
            server = Started(process)
            yield server
            server.rest.join(60)
        finally:
            process.kill()


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Settings of the servers that the test starts, which then do not run."""
    made: list[Settings] = []
    monkeypatch.setattr(run_module, "run", lambda settings, **_: made.append(settings))
    return made


def test_a_server_says_where_it_listens_and_ends_well(bundles: dict[str, Path]) -> None:
    with started(f"a={bundles['fp32']}", "--log-prompts") as server:
        body = {"prompt": "one\ntwo", "max_tokens": 3}
        response = httpx2.post(
            f"{server.url}/v1/completions", json=body, timeout=60, trust_env=False
        )
        assert response.status_code == 200
        assert server.stop(signal.SIGTERM) == 0
    (line,) = [line for line in server.lines if "/v1/completions" in line]
    assert r"one\\ntwo" in line  # escaped by JSON, then by the log
    assert f"answer={response.json()['choices'][0]['text']!r}" in line
    assert "stopping" in "".join(server.lines)
    assert "Traceback" not in "".join(server.lines)


MISTAKES = [
    ["no/such/bundle"],
    ["BUNDLE", "BUNDLE"],
    ["BUNDLE", "--port", "70000"],
    ["BUNDLE", "--port", "TAKEN"],
    ["BUNDLE", "--host", "192.0.2.1", "--insecure", "--port", "0"],
    ["BUNDLE", "--slots", "0", "--port", "0"],
    ["BUNDLE", "--allow-origin", "*"],
    ["BUNDLE", "--allow-origin", "https://a.example/path"],
    ["BUNDLE", "--root-path", "llm"],
    ["BUNDLE", "--request-timeout", "0"],
    ["BUNDLE", "--key-file", "EMPTY"],
    ["BUNDLE", "--key-file", "BINARY"],
    ["OTHER", "--adapter=a=ADAPTER"],
    ["BUNDLE", "--adapter=a=NOTHING"],
    ["a=BUNDLE", "--adapter=a=ADAPTER"],
]


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_mistakes_are_errors_of_one_line(
    bundles: dict[str, Path], tmp_path: Path, arguments: list[str], snapshot: SnapshotAssertion
) -> None:
    bundle = open_bundle(bundles["fp32"])
    with socket.create_server(("127.0.0.1", 0)) as other:
        words = {
            "BUNDLE": str(bundle.path),
            "OTHER": str(bundles["int4"]),
            "ADAPTER": str(write_adapter(tmp_path / "adapter", bundle, random_factors(bundle))),
            "NOTHING": str(tmp_path / "nothing"),
            "EMPTY": str(tmp_path / "empty"),
            "BINARY": str(tmp_path / "binary"),
            "TAKEN": str(other.getsockname()[1]),
        }
        (tmp_path / "empty").write_text("\n \n")
        (tmp_path / "binary").write_bytes(b"\xff\xfe")
        pattern = "|".join(words)
        given = [re.sub(pattern, lambda found: words[found[0]], word) for word in arguments]
        line = error_line("serve", *given)
    for name, value in words.items():
        line = line.replace(value, name)
    assert line == snapshot


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "my-machine"])
def test_other_machines_need_a_key(
    bundles: dict[str, Path], host: str, settings: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("serve", bundles["fp32"], "--host", host)
    assert "--insecure" in error_line(*command)
    monkeypatch.setenv(serve.KEYS_VARIABLE, " ")  # a blank variable is no key
    assert "--insecure" in error_line(*command)
    assert settings == []
    assert run_here(*command, "--insecure").returncode == 0
    monkeypatch.setenv(serve.KEYS_VARIABLE, "secret")
    assert run_here(*command).returncode == 0
    assert [made.keys for made in settings] == [frozenset(), {"secret"}]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_this_machine_needs_none_and_has_only_its_own_names(
    bundles: dict[str, Path], host: str, settings: list[Settings]
) -> None:
    options: list[Any] = ["--host", host, "--allow-host", "Box.Local"]
    assert run_here("serve", bundles["fp32"], *options).returncode == 0
    assert settings[0].keys == frozenset()
    assert settings[0].hosts == {"localhost", "127.0.0.1", "::1", "box.local"}
    assert settings[0].origins == ()
    assert not settings[0].log_prompts


def test_keys_come_from_a_file_and_the_environment(
    bundles: dict[str, Path],
    tmp_path: Path,
    settings: list[Settings],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(serve.KEYS_VARIABLE, "three")
    file = tmp_path / "keys"
    file.write_text("one\n\n  two  \n")
    options = ("--key-file", file, "--allow-origin", "HTTPS://A.example/".lower())
    assert run_here("serve", bundles["fp32"], *options).returncode == 0
    assert settings[0].keys == {"one", "two", "three"}
    assert settings[0].origins == ("https://a.example",)
