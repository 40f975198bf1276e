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

import msgspec
import pytest
from tests.hub.library import point_library_at
from tests.hub.server import Hub, Repository
from tests.runtime import tiny_encoder
from tests.runtime.tiny_decoder import tokenizer_json, write_bundle

from ortolan import cache, files
from ortolan.hub.errors import HubError, RepositoryError
from ortolan.hub.name import Name, name_of
from ortolan.runtime import (
    BundleFileError,
    BundleNotFoundError,
    Decoder,
    UntrustedError,
    load,
    loading,
    open_bundle,
)
from ortolan.runtime.bundle import fetched as module
from ortolan.runtime.bundle.fetched import fetched, is_fetched
from ortolan.runtime.bundle.manifest_file import decode, encode

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


def tokens(model: Any) -> tuple[int, ...]:
    written: tuple[int, ...] = model.generate(PROMPT, max_new_tokens=8).tokens
    return written


def by_name(name: str, **options: Any) -> tuple[int, ...]:
    """What a bundle of the Hub generates, loaded without a subprocess."""
    return tokens(load(name, isolate=False, **options))


def entries(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir()) if place.exists() else []


def test_a_bundle_loads_by_name_and_is_fetched_once(hub: Hub, bundles: dict[str, Path]) -> None:
    hub.repositories["org/bundle"] = Repository(contents(bundles["int4"]))
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
    with pytest.raises(RepositoryError, match=r"is 2 bundles. Name one of org/bundle:a"):
        load("org/bundle")
    with pytest.raises(RepositoryError, match=r"org/bundle:c is not a bundle. Name one of"):
        load("org/bundle:c")


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


def test_files_of_the_cache_are_no_links_and_take_no_further_space(
    hub: Hub, bundles: dict[str, Path]
) -> None:
    hub.repositories["org/bundle"] = Repository(contents(bundles["int4"]))
    folder = fetched_here("org/bundle")
    weights = open_bundle(folder, full_check=True).manifest.weights[0]
    assert not any(path.is_symlink() for path in folder.rglob("*"))
    (snapshot,) = (hub.home / "hub" / "models--org--bundle" / "snapshots").iterdir()
    assert (snapshot / weights).is_symlink()
    assert (folder / weights).samefile(snapshot / weights)
    with pytest.raises(BundleFileError, match="symbolic link"):
        open_bundle(snapshot)


def test_files_on_another_file_system_are_copied(
    hub: Hub, bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    hub.repositories["org/bundle"] = Repository(contents(bundles["int4"]))
    folder = fetched_here("org/bundle")
    assert all(path.stat().st_nlink == 1 for path in folder.rglob("*") if path.is_file())
    assert by_name("org/bundle") == tokens(load(bundles["int4"]))


@pytest.mark.skipif(os.name == "nt", reason="files have no user there")
def test_files_of_another_user_are_copied(
    hub: Hub, bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    hub.repositories["org/bundle"] = Repository(contents(bundles["int4"]))
    folder = fetched_here("org/bundle")
    assert all(path.stat().st_nlink == 1 for path in folder.rglob("*") if path.is_file())


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


def test_custom_operators_are_never_trusted_by_name(
    hub: Hub, bundles: dict[str, Path], place: Path
) -> None:
    own = contents(bundles["int4"])
    manifest = decode(own["manifest.json"])
    named = msgspec.structs.replace(manifest, foreign_operators=("my.domain::Op",))
    own["manifest.json"] = encode(named)
    hub.repositories["org/bundle"] = Repository(own)
    for trust in (False, True):
        with pytest.raises(UntrustedError, match="org/bundle uses operators that Ortolan does not"):
            load("org/bundle", trust=trust)
    assert entries(place) == []


@pytest.mark.parametrize(
    ("options", "times"), [({}, 1), ({"isolate": True}, 1), ({"isolate": False}, 0)]
)
def test_a_fetched_bundle_is_loaded_in_a_subprocess_first_unless_that_is_declined(
    options: Any,
    times: int,
    hub: Hub,
    bundles: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Path] = []
    monkeypatch.setattr(loading, "first_load", lambda bundle, **_: tried.append(bundle.path))
    hub.repositories["org/bundle"] = Repository(contents(bundles["int4"]))
    load("org/bundle", **options)
    assert len(tried) == times
    folder = fetched_here("org/bundle")
    assert is_fetched(folder)
    load(folder, **options)
    assert tried == [folder] * 2 * times
    load(bundles["int4"])
    assert len(tried) == 2 * times


def test_a_path_that_exists_is_always_a_path(
    hub: Hub, bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["org/bundle"] = Repository(contents(bundles["int4"]))
    shutil.copytree(bundles["int8"], tmp_path / "here" / "org" / "bundle")
    monkeypatch.chdir(tmp_path / "here")
    assert by_name("org/bundle") == tokens(load(bundles["int8"]))
    assert hub.requests == []
    with pytest.raises(HubError, match="revision v1 is for a name on the Hub"):
        load("org/bundle", revision="v1")


def test_what_is_neither_a_path_nor_a_name_says_so(hub: Hub) -> None:
    with pytest.raises(HubError, match="no/thing: no such file or folder, and no repository"):
        load("no/thing")
    with pytest.raises(BundleNotFoundError, match="There is no folder"):
        load("./no/thing")


@pytest.mark.parametrize("file", ["config.json", "model-Q4_K_M.gguf"])
def test_a_checkpoint_is_refused_with_the_commands_for_it(file: str, hub: Hub) -> None:
    hub.repositories["org/model"] = Repository({file: b"{}"})
    with pytest.raises(RepositoryError, match=r"`ortolan chat org/model`.*`ortolan export org/mod"):
        load("org/model")


def test_a_repository_of_neither_is_refused(hub: Hub) -> None:
    hub.repositories["org/data"] = Repository({"README.md": b"#"})
    with pytest.raises(RepositoryError, match=r"org/data is not a bundle. It has no manifest.json"):
        load("org/data")


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
    hub: Hub, bundles: dict[str, Path]
) -> None:
    repository = hub.repositories["org/bundle"] = Repository(contents(bundles["int4"]))
    fetched_here("org/bundle")
    hub.requests.clear()
    fetched_here("org/bundle")
    assert len(hub.requests) == 1
    fetched_here(f"org/bundle@{repository.refs['refs/heads/main']}")
    assert len(hub.requests) == 1


def test_a_new_commit_is_fetched_and_the_old_one_stays(
    hub: Hub, bundles: dict[str, Path], place: Path
) -> None:
    repository = hub.repositories["org/bundle"] = Repository(contents(bundles["int4"]))
    before = load("org/bundle", isolate=False)
    gone = {name: None for name in contents(bundles["int4"])}
    repository.commit({**gone, **contents(bundles["int8"])})
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
    hub.repositories["org/bundle"] = Repository(contents(bundles["int4"]))
    environment = {**os.environ, **hub.environment, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", KILLED], env=environment, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [path for path in place.iterdir() if not path.name.startswith(".")] == []
    assert by_name("org/bundle") == tokens(load(bundles["int4"]))
    assert len(entries(place)) == 1


def test_a_file_named_like_the_note_is_not_taken_from_a_repository(
    hub: Hub, bundles: dict[str, Path]
) -> None:
    hub.repositories["org/bundle"] = Repository(
        {**contents(bundles["int4"]), "fetched.json": b"{}"}
    )
    commit = hub.repositories["org/bundle"].refs["refs/heads/main"]
    folder = fetched_here("org/bundle")
    note = json.loads((folder / "fetched.json").read_bytes())
    assert note == {"repository": "org/bundle", "folder": "", "commit": commit}
    assert (folder / "fetched.json").stat().st_nlink == 1


def test_progress_names_both_steps(hub: Hub, bundles: dict[str, Path]) -> None:
    hub.repositories["org/bundle"] = Repository(contents(bundles["int4"]))
    name = Name(repository="org/bundle")
    steps: list[tuple[str, int, int]] = []
    fetched(name, progress=lambda *step: steps.append(step))
    assert {step for step, _, _ in steps} == {"fetch", "check"}
    _, done, total = steps[-1]
    assert 0 < done <= total


def test_without_the_library_the_error_says_both(
    monkeypatch: pytest.MonkeyPatch, bundles: dict[str, Path]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "huggingface_hub"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(HubError, match=r"no/thing: no such file or folder. .*\[hub\]"):
        load("no/thing")
    assert tokens(load(bundles["int4"]))


def test_placing_keeps_the_bytes_of_the_hub(tmp_path: Path) -> None:
    files.write(tmp_path / "blob", b"bytes")
    (tmp_path / "link").symlink_to("blob")
    module._place(tmp_path / "link", tmp_path / "new" / "file")
    assert (tmp_path / "new" / "file").read_bytes() == b"bytes"
    assert not (tmp_path / "new" / "file").is_symlink()


def test_an_older_library_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.delitem(vars(huggingface_hub), "get_cached_repo_tree", raising=False)
    monkeypatch.setattr(huggingface_hub, "__getattr__", _no_attribute)
    with pytest.raises(HubError, match=r"no/thing: no such file or folder. .*\[hub\]"):
        load("no/thing")


def _no_attribute(name: str) -> None:
    raise AttributeError(name)
