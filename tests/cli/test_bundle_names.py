"""Commands that read a bundle get the same from its name as from its folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from tests.cli.conftest import REPOSITORY, error_line, run_here
from tests.hub.server import Hub, Repository
from tests.hub.server import hub as hub
from tests.runtime import tiny_encoder
from tests.runtime.tiny_decoder import tokenizer_json, write_bundle

from ortolan import cache
from ortolan.cli import COMMANDS, cli, options
from ortolan.cli.opening import bundle_in, bundle_of
from ortolan.cli.progress import Reporter

ON_THIS_MACHINE = {"sign"}
"""Commands that accept no name: they write into the folder of their bundle."""

RUNS = (
    "embed embedding word",
    "classify labels word",
    "answer labels question --context {text}",
    "fill labels word",
    "transcribe labels {text}",
    "attention labels word -o {out}",
    "inspect decoder",
    "inspect decoder --operators {out}",
    "export-genai decoder {out} --force",
)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("names")
    tiny_encoder.write_bundle(folder / "labels", maps=True)
    tiny_encoder.write_bundle(folder / "embedding", kind="embedding")
    write_bundle(folder / "decoder", tokenizer=tokenizer_json())
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(autouse=True)
def _published(
    hub: Hub, bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for name, folder in bundles.items():
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        hub.repositories[f"org/{name}"] = repository = Repository({"README.md": b"#"})
        repository.refs["refs/tags/v1"] = repository.commit(files)
        repository.commit({name: None for name in files})


@pytest.mark.parametrize("line", RUNS)
def test_a_name_gives_what_the_folder_gives(
    line: str, bundles: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("a text")
    command, bundle, *rest = line.split()
    results = []
    for model in (bundles[bundle], f"org/{bundle}@v1"):
        out = tmp_path / "out"
        words = [word.format(text=tmp_path / "text.txt", out=out) for word in rest]
        done = run_here(command, model, *words)
        written = out.read_bytes() if out.is_file() else None
        results.append((done.returncode, done.stdout, done.stderr, written))
    assert results[0] == results[1]


@pytest.mark.slow
def test_speed_is_measured_and_weights_packed_by_name() -> None:
    done = run_here("bench", "org/decoder@v1", "-p", "4", "-n", "2", "-r", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert [case["name"] for case in json.loads(done.stdout)["cases"]] == ["pp4", "tg2"]
    done = run_here("pack", "org/decoder@v1", "--json")
    assert done.returncode == 0, done.stderr
    packed = Path(json.loads(done.stdout)["folder"])
    assert packed.is_relative_to(cache.cache_folder())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_with_a_bundle_accepts_a_name_or_is_for_this_machine(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    for param in command.params:
        if isinstance(param, click.Argument) and param.name == "bundle":
            assert (param.type is options.model_path) is (name not in ON_THIS_MACHINE)
            (completion,) = param.type.shell_complete(click.Context(command), param, "org/x")
            assert completion.type == "file"


def test_verify_by_name_is_remembered(hub: Hub) -> None:
    done = run_here("verify", "org/decoder@v1", "--json")
    assert done.returncode == 0, done.stderr
    (entry,) = cache.entries()
    first_load = json.loads(run_here("inspect", entry.path, "--json").stdout)["first_load"]
    assert first_load["outcome"] == "verified"


def test_what_is_no_bundle_is_one_line(hub: Hub) -> None:
    line = error_line("verify", "org/decoder")
    assert line == "ortolan: org/decoder is not a bundle. It has no manifest.json."
    hub.repositories["org/checkpoint"] = Repository({"config.json": b"{}"})
    assert "`ortolan chat org/checkpoint`" in error_line("embed", "org/checkpoint", "a")
    assert "no repository org/nothing" in error_line("embed", "org/nothing", "a")


def test_steps_are_shown_and_a_checkpoint_is_told_from_a_bundle(
    hub: Hub, bundles: dict[str, Path], tmp_path: Path
) -> None:
    states: list[str] = []

    class Recorder(Reporter):
        def __call__(self, step: str, done: int, total: int, what: str = "") -> None:
            states.append(step)

    with Recorder("verify", lambda _: None, first=3600, seconds=3600) as steps:
        folder = bundle_of("org/labels@v1", steps)
        assert list(dict.fromkeys(states)) == ["fetch", "check", "load"]
        assert bundle_in("org/labels@v1", steps) == bundle_of("org/labels@v1", steps) == folder
        states.clear()
        assert bundle_of(f"{bundles['labels']}", steps) == bundles["labels"]
        assert bundle_in(f"{tmp_path / 'missing'}", steps) == tmp_path / "missing"
        assert states == []
        hub.repositories["org/checkpoint"] = Repository({"config.json": b"{}"})
        assert bundle_in("org/checkpoint", steps) is None
        assert bundle_in(f"{tmp_path}", steps) is None


@pytest.mark.slow
def test_a_warm_cache_needs_no_connection_in_a_new_process(hub: Hub) -> None:
    words = [sys.executable, "-m", "ortolan", "embed", "org/embedding@v1", "word"]
    environment = {**os.environ, **hub.environment, "PYTHONPATH": "src"}
    first = subprocess.run(words, env=environment, cwd=REPOSITORY, capture_output=True, check=True)
    hub.requests.clear()
    environment["HF_HUB_OFFLINE"] = "1"
    again = subprocess.run(words, env=environment, cwd=REPOSITORY, capture_output=True, check=True)
    assert again.stdout == first.stdout
    assert hub.requests == []
