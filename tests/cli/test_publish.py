"""`ortolan publish`, and what others get by the name."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from huggingface_hub import ModelCard
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import REPOSITORY, error_line, run_here
from tests.hub.server import TOKEN, Hub, Repository
from tests.hub.server import hub as hub
from tests.runtime.tiny_decoder import tokenizer_json, write_bundle

from ortolan.runtime import load, open_bundle
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.manifest_file import decode, encode

PROMPT = [*range(20)]


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.fixture
def writer(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The local hub, with a token that may write to the repositories of `me`."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return hub


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("publish")
    one = write_bundle(folder / "one", tokenizer=tokenizer_json()).path
    two = write_bundle(folder / "two", tokenizer=tokenizer_json(), seed=1).path
    edit(two, precision="fp16")
    return {"fp32": one, "fp16": two}


def edit(bundle: Path, **changes: Any) -> Manifest:
    """Change fields of a manifest."""
    file = bundle / "manifest.json"
    manifest = msgspec.structs.replace(decode(file.read_bytes()), **changes)
    file.write_bytes(encode(manifest))
    return manifest


def listed(folder: Path) -> set[str]:
    """Files that the manifest of a bundle lists, and the manifest."""
    return {"manifest.json", *(file.name for file in open_bundle(folder).manifest.files)}


def head(hub: Hub, name: str, branch: str = "main") -> dict[str, bytes]:
    """Files of the last commit of a branch."""
    repository = hub.repositories[name]
    files = repository.commits[repository.refs[f"refs/heads/{branch}"]]
    return {path: data for path, data in files.items() if path != ".gitattributes"}


def published(*arguments: str | Path) -> dict[str, Any]:
    done = run_here("publish", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def tokens(source: str | Path) -> tuple[int, ...]:
    written: tuple[int, ...] = load(source, isolate=False).generate(PROMPT, max_new_tokens=8).tokens
    return written


def test_a_published_bundle_generates_the_same_by_name(
    writer: Hub, bundles: dict[str, Path]
) -> None:
    done = run_here("publish", bundles["fp32"], "me/model", "--license", "apache-2.0")
    assert done.returncode == 0, done.stderr
    lines = [line.split(None, 1) for line in done.stdout.decode().splitlines()]
    assert lines[0] == ["published", f"{writer.url}/me/model"]
    assert lines[-1] == ["use", 'ortolan run me/model "Once upon a time"']
    assert head(writer, "me/model").keys() == {*listed(bundles["fp32"]), "README.md"}
    assert tokens("me/model") == tokens(bundles["fp32"])
    card = ModelCard(head(writer, "me/model")["README.md"].decode())
    assert card.data.license == "apache-2.0"  # type: ignore[attr-defined]
    assert "ortolan verify me/model\n" in card.text


def test_bundles_of_one_checkpoint_get_a_folder_each(writer: Hub, bundles: dict[str, Path]) -> None:
    about = published(bundles["fp32"], bundles["fp16"], "me/model", "--private")
    assert [row["name"] for row in about["bundles"]] == ["me/model:fp32", "me/model:fp16"]
    assert about["commit"] == writer.repositories["me/model"].refs["refs/heads/main"]
    assert writer.repositories["me/model"].private
    for name, path in bundles.items():
        assert tokens(f"me/model:{name}") == tokens(path)
    text = head(writer, "me/model")["README.md"].decode()
    assert "ortolan verify me/model:fp32\n" in text
    assert "| `fp16` |" in text


def test_a_second_commit_replaces_the_bundle_and_keeps_other_files(
    writer: Hub, bundles: dict[str, Path]
) -> None:
    published(bundles["fp32"], "me/model")
    writer.repositories["me/model"].commit({"config.json": b"{}", "README.md": b"# my own"})
    published(bundles["fp16"], "me/model", "--no-card")
    assert head(writer, "me/model").keys() == {*listed(bundles["fp16"]), "README.md", "config.json"}
    assert head(writer, "me/model")["README.md"] == b"# my own"
    published(*bundles.values(), "me/model")
    own = {f"{name}/{file}" for name, path in bundles.items() for file in listed(path)}
    assert head(writer, "me/model").keys() == {*own, "README.md", "config.json"}


def test_a_branch_is_made_and_loads_as_a_revision(writer: Hub, bundles: dict[str, Path]) -> None:
    published(bundles["fp32"], "me/model")
    about = published(bundles["fp16"], "me/model", "--revision", "small")
    assert about["url"] == f"{writer.url}/me/model/tree/small"
    assert about["bundles"][0]["name"] == "me/model@small"
    assert tokens("me/model@small") == tokens(bundles["fp16"])
    assert tokens("me/model") == tokens(bundles["fp32"])


def test_signatures_go_along_and_packed_weights_do_not(
    writer: Hub, bundles: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(bundles["fp32"], tmp_path / "bundle")
    assert run_here("pack", folder).returncode == 0
    (folder / "model.sig").write_bytes(b"{}")
    (folder / "notes.json").write_bytes(b"{}")
    assert len(list(folder.glob("packed-*/*"))) == 3
    published(folder, "me/model", "--no-card")
    assert head(writer, "me/model").keys() == {*listed(folder), "model.sig"}


def test_the_base_model_is_the_repository_of_the_checkpoint(
    writer: Hub, bundles: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(bundles["fp32"], tmp_path / "bundle")
    origin = f"acme/base@{'0' * 40}"
    provenance = open_bundle(folder).manifest.provenance
    edit(folder, provenance=msgspec.structs.replace(provenance, repository=origin))
    for options, expected in (((), "acme/base"), (("--base-model", "a/b"), "a/b")):
        published(folder, "me/model", *options)
        card = ModelCard(head(writer, "me/model")["README.md"].decode())
        assert card.data.base_model == expected  # type: ignore[attr-defined]
        assert origin in card.text


def test_custom_operators_are_named(writer: Hub, bundles: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(bundles["fp32"], tmp_path / "bundle")
    edit(folder, foreign_operators=("my.domain::Op",))
    done = run_here("publish", folder, "me/model")
    assert done.returncode == 0
    assert b"uses custom operators (my.domain::Op), which are not tested" in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "fp32 org/model",
        "fp32 public",
        "fp32 me/model:fp16",
        "fp32 me/model@v1 --revision v2",
        "fp32 me/public --private",
        "fp32 fp32 me/model",
        "damaged me/model",
        "nowhere me/model",
    ],
)
def test_what_cannot_be_published_is_one_line(
    line: str,
    writer: Hub,
    bundles: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    writer.repositories["me/public"] = Repository({"README.md": b"#"})
    monkeypatch.chdir(tmp_path)
    for name in ("fp32", "damaged"):
        shutil.copytree(bundles["fp32"], name)
    weights = Path("damaged", open_bundle(Path("damaged")).manifest.weights[0])
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    said = error_line("publish", *line.split())
    digests = re.sub(r"[0-9a-f]{12,}", "...", said.replace(writer.url, "..."))
    assert digests.removeprefix("ortolan: ") == snapshot
    assert writer.repositories.keys() == {"me/public"}
    assert head(writer, "me/public") == {"README.md": b"#"}


def test_without_a_token_or_a_connection_the_line_says_what_to_do(
    hub: Hub, bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "`hf auth login`" in error_line("publish", bundles["fp32"], "me/model")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in error_line("publish", bundles["fp32"], "me/model")
    assert hub.repositories == {}


def cli(hub: Hub, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command line as others run it, with the local hub as the Hub."""
    environment = {**os.environ, **hub.environment, "HF_TOKEN": TOKEN, "PYTHONPATH": "src"}
    return subprocess.run(
        [sys.executable, "-m", "ortolan", *map(str, arguments)],
        env={**environment, "OMP_NUM_THREADS": "1"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_published_by_one_process_and_verified_by_another(
    writer: Hub, bundles: dict[str, Path]
) -> None:
    done = cli(writer, "publish", *bundles.values(), "me/model")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for name in ("me/model:fp32", "me/model:fp32@main"):
        done = cli(writer, "verify", name, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["verdict"] == "PASS"
    done = cli(writer, "inspect", "me/model")
    assert (done.returncode, done.stdout) == (2, "")
    assert "me/model is 2 bundles. Name one of me/model:fp16, me/model:fp32." in done.stderr
