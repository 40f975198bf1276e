"""Bundles by name: `load`, and how they get into the cache."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.hub.server import Hub, Repository, point_library_at
from tests.refusals import refusal
from tests.runtime import tiny_encoder
from tests.runtime.tiny_decoder import tokenizer_json, write_bundle

from ortolan import cache
from ortolan.hub import HubError
from ortolan.hub.name import Name, name_of
from ortolan.runtime import (
    BundleFileError,
    Decoder,
    load,
    loading,
    open_bundle,
)
from ortolan.runtime.bundle.fetched import fetched

SOURCE = Path(__file__).parents[2] / "src"

PROMPT = [*range(20)]

Files = Mapping[str, bytes]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the entries of an empty cache."""
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return cache.cache_folder() / "bundles"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("fetched")
    return {
        name: write_bundle(folder / name, seed=seed, tokenizer=tokenizer_json()).path
        for seed, name in enumerate(("int4", "int8"))
    }


def contents(folder: Path, under: str = "") -> dict[str, bytes]:
    """Files of a repository that has a bundle in the folder `under`."""
    return {
        f"{under}{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(autouse=True)
def published(hub: Hub, bundles: dict[str, Path]) -> Repository:
    """A repository that is a bundle."""
    hub.repositories["org/bundle"] = Repository(contents(bundles["int4"]))
    return hub.repositories["org/bundle"]


def tokens(model: Any) -> tuple[int, ...]:
    written: tuple[int, ...] = model.generate(PROMPT, max_new_tokens=8).tokens
    return written


def by_name(name: str, **options: Any) -> tuple[int, ...]:
    """What a bundle of the Hub generates, loaded without a subprocess."""
    return tokens(load(name, isolate=False, **options))


def entries(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir()) if place.exists() else []


def test_a_bundle_loads_by_name_and_is_fetched_once(hub: Hub, bundles: dict[str, Path]) -> None:
    expected = tokens(load(bundles["int4"]))
    assert tokens(load("org/bundle", Decoder)) == expected
    files_sent = hub.sent("/resolve/") + hub.sent("/cdn/")
    assert files_sent > 0
    assert tokens(load("org/bundle")) == expected
    assert hub.sent("/resolve/") + hub.sent("/cdn/") == files_sent


def test_a_part_and_a_revision_choose_a_bundle(hub: Hub, bundles: dict[str, Path]) -> None:
    hub.repositories["org/bundle"] = repository = Repository(
        {"README.md": b"#", **contents(bundles["int4"], "a/")}
    )
    repository.refs["refs/tags/v1"] = repository.refs["refs/heads/main"]
    repository.commit(contents(bundles["int8"], "b/"))
    one, other = (tokens(load(bundles[name])) for name in ("int4", "int8"))
    assert one != other
    assert by_name("org/bundle:a") == one
    assert by_name("org/bundle:b") == other
    assert by_name("org/bundle@v1") == by_name("org/bundle", revision="v1") == one


def test_a_bundle_of_a_repository_that_is_one_is_not_fetched_with_it(
    hub: Hub, bundles: dict[str, Path]
) -> None:
    own = contents(bundles["int4"])
    hub.repositories["org/bundle"] = Repository(
        {
            **own,
            **contents(bundles["int8"], "int8/"),
            "packed-0123456789abcdef/packed.bin": b"for another machine",
            "README.md": b"#",
        }
    )
    folder = fetched_here("org/bundle")
    assert contents(folder).keys() - {"fetched.json"} == own.keys()
    assert by_name("org/bundle:int8") == tokens(load(bundles["int8"]))


def test_a_part_of_a_bundle_comes_with_it(hub: Hub, tmp_path: Path) -> None:
    own = tiny_encoder.write_bundle(tmp_path / "bundle").path
    hub.repositories["org/bundle"] = Repository(
        {**contents(own), **contents(own, "text/"), **contents(own, "other/")}
    )
    folder = fetched_here("org/bundle")
    assert (folder / "text" / "manifest.json").is_file()
    assert not (folder / "other").exists()


def fetched_here(name: str) -> Path:
    found = name_of(name)
    assert found is not None
    return fetched(found)


def test_files_of_the_cache_are_no_links_and_take_no_further_space(hub: Hub) -> None:
    folder = fetched_here("org/bundle")
    weights = open_bundle(folder, full_check=True).manifest.weights[0]
    assert not any(path.is_symlink() for path in folder.rglob("*"))
    (snapshot,) = (hub.home / "hub" / "models--org--bundle" / "snapshots").iterdir()
    assert (snapshot / weights).is_symlink()
    assert (folder / weights).samefile(snapshot / weights)
    with pytest.raises(BundleFileError, match="symbolic link"):
        open_bundle(snapshot)


def _no_links(*_: object) -> None:
    raise OSError(18, "Invalid cross-device link")


@pytest.mark.skipif(os.name == "nt", reason="files have no user there")
@pytest.mark.parametrize(("name", "value"), [("link", _no_links), ("geteuid", lambda: 12345)])
def test_files_on_another_file_system_and_those_of_another_user_are_copied(
    name: str,
    value: object,
    published: Repository,
    bundles: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, name, value)
    folder = fetched_here("org/bundle")
    assert all(path.stat().st_nlink == 1 for path in folder.rglob("*") if path.is_file())
    monkeypatch.undo()
    assert contents(folder).keys() - {"fetched.json"} == contents(bundles["int4"]).keys()
    open_bundle(folder, full_check=True)


def test_a_hard_link_out_of_the_cache_is_still_refused(bundles: dict[str, Path]) -> None:
    folder = shutil.copytree(bundles["int4"], cache.cache_folder().parent / "bundle")
    os.link(folder / "manifest.json", folder / "again")
    with pytest.raises(BundleFileError, match="2 hard links"):
        open_bundle(folder)


@pytest.mark.parametrize("name", ["decoder.onnx", "weights", "tokenizer.json"])
def test_a_file_that_differs_from_the_manifest_is_named_and_nothing_kept(
    name: str, hub: Hub, bundles: dict[str, Path], place: Path
) -> None:
    own = contents(bundles["int4"])
    (file,) = (file for file in own if file.startswith(name))
    own[file] = own[file][:-1] + bytes([own[file][-1] ^ 1])
    hub.repositories["org/bundle"] = Repository(own)
    with pytest.raises(BundleFileError, match=f"org/bundle was not kept: {file}: expected sha256"):
        load("org/bundle")
    assert entries(place) == []


@pytest.mark.parametrize(
    ("options", "times"), [({}, 1), ({"isolate": True}, 1), ({"isolate": False}, 0)]
)
def test_a_bundle_is_loaded_in_a_subprocess_first_unless_that_is_declined(
    options: Any,
    times: int,
    published: Repository,
    bundles: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Path] = []
    monkeypatch.setattr(loading, "pass_first_load", lambda bundle, **_: tried.append(bundle.path))
    load("org/bundle", **options)
    assert len(tried) == times
    folder = fetched_here("org/bundle")
    load(folder, **options)
    assert tried == [folder] * 2 * times
    load(bundles["int4"], **options)
    assert len(tried) == 3 * times


def test_a_path_that_exists_is_always_a_path(
    hub: Hub,
    bundles: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(bundles["int8"], tmp_path / "here" / "org" / "bundle")
    monkeypatch.chdir(tmp_path / "here")
    assert by_name("org/bundle") == tokens(load(bundles["int8"]))
    assert hub.requests == []
    with pytest.raises(HubError, match="revision v1 is for a name on the Hub"):
        load("org/bundle", revision="v1")


REFUSED = ("org/two", "org/two:c", "org/model", "org/gguf", "org/data", "no/thing", "./no/thing")


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_bundle_is_refused_with_what_to_do(
    name: str, hub: Hub, bundles: dict[str, Path], snapshot: SnapshotAssertion
) -> None:
    two = contents(bundles["int4"], "a/") | contents(bundles["int8"], "b/")
    hub.repositories |= {
        "org/two": Repository(two),
        "org/model": Repository({"config.json": b"{}"}),
        "org/gguf": Repository({"model-Q4_K_M.gguf": b"{}"}),
        "org/data": Repository({"README.md": b"#"}),
    }
    assert refusal(lambda: load(name), hub.url, Path.cwd()) == snapshot


def test_a_warm_cache_needs_no_connection(
    hub: Hub, bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["org/bundle"] = Repository(contents(bundles["int4"], "int4/"))
    expected = by_name("org/bundle")
    hub.requests.clear()
    with monkeypatch.context() as patch:
        point_library_at(hub, patch)
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        assert by_name("org/bundle:int4") == by_name("org/bundle") == expected
        with pytest.raises(HubError, match=r"not in the cache.*HF_HUB_OFFLINE is set"):
            load("org/other")
    assert hub.requests == []


def test_the_hub_is_asked_once_for_a_warm_name_and_never_for_a_warm_commit(
    hub: Hub, published: Repository
) -> None:
    fetched_here("org/bundle")
    hub.requests.clear()
    fetched_here("org/bundle")
    assert len(hub.requests) == 1
    fetched_here(f"org/bundle@{published.refs['refs/heads/main']}")
    assert len(hub.requests) == 1


def test_a_new_commit_is_fetched_and_the_old_one_stays(
    published: Repository, bundles: dict[str, Path], place: Path
) -> None:
    before = load("org/bundle", isolate=False)
    gone = {name: None for name in contents(bundles["int4"])}
    published.commit({**gone, **contents(bundles["int8"])})
    assert by_name("org/bundle") == tokens(load(bundles["int8"]))
    assert tokens(before) == tokens(load(bundles["int4"]))
    assert len(entries(place)) == 2


KILLED = """
import os, signal, sys
from ortolan.hub.name import parsed
from ortolan.runtime.bundle import fetched
place = fetched._place
def last(origin, target):
    if target.name == "manifest.json":
        os.kill(os.getpid(), signal.SIGKILL)
    place(origin, target)
fetched._place = last
fetched.fetched(parsed("org/bundle"))
"""


def test_a_process_killed_while_placing_leaves_nothing_in_use(
    hub: Hub, bundles: dict[str, Path], place: Path
) -> None:
    environment = {**os.environ, **hub.environment, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", KILLED], env=environment, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [path for path in place.iterdir() if not path.name.startswith(".")] == []
    assert by_name("org/bundle") == tokens(load(bundles["int4"]))
    assert len(entries(place)) == 1


def test_a_file_named_like_the_note_is_not_taken_from_a_repository(published: Repository) -> None:
    commit = published.commit({"fetched.json": b"{}"})
    folder = fetched_here("org/bundle")
    note = json.loads((folder / "fetched.json").read_bytes())
    assert note == {"repository": "org/bundle", "folder": "", "commit": commit}
    assert (folder / "fetched.json").stat().st_nlink == 1


def test_progress_names_both_steps(published: Repository) -> None:
    steps: list[tuple[str, int, int]] = []
    fetched(Name(repository="org/bundle"), progress=lambda *step: steps.append(step))
    assert {step for step, _, _ in steps} == {"fetch", "check"}
    _, done, total = steps[-1]
    assert 0 < done <= total


def _no_attribute(name: str) -> None:
    raise AttributeError(name)


@pytest.mark.parametrize("state", ["absent", "older"])
def test_without_the_library_or_with_an_older_one_the_error_says_both(
    state: str, monkeypatch: pytest.MonkeyPatch, bundles: dict[str, Path]
) -> None:
    import huggingface_hub

    if state == "older":
        monkeypatch.delitem(vars(huggingface_hub), "get_cached_repo_tree", raising=False)
        monkeypatch.setattr(huggingface_hub, "__getattr__", _no_attribute)
    else:
        for name in [name for name in sys.modules if name.split(".")[0] == "huggingface_hub"]:
            monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(HubError, match=r"no/thing: no such file or folder. .*\[hub\]"):
        load("no/thing")
    assert tokens(load(bundles["int4"]))
