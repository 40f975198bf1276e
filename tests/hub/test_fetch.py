"""What is fetched for a name, and what is not; every refusal in one line."""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants
from syrupy.assertion import SnapshotAssertion
from tests.hub.server import TOKEN, Hub, Repository
from tests.refusals import refusal

from ortolan.hub import RepositoryError
from ortolan.hub.client import download, list_files
from ortolan.hub.fetch import fetch_adapter, fetch_bundle, fetch_checkpoint, kind_of, origin_of
from ortolan.hub.name import Name, name_of, parsed
from ortolan.hub.selection import PARTS
from ortolan.runtime.bundle import parts

DESCRIBING = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
UNWANTED = (
    *("README.md", "modeling_own.py", "requirements.txt.bak", "pytorch_model.bin"),
    *("consolidated.safetensors", "tf_model.h5", "onnx/model.onnx", "original/params.json"),
    *("model.safetensors.old", "training_args.bin"),
)
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = {"weight_map": {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[0]}}
TYPES = tuple(f"Tiny-{kind}.gguf" for kind in ("Q4_K_M", "Q4_K_S", "Q8_0", "f16"))


def files(*names: str, **contents: object) -> dict[str, bytes]:
    """Files that hold their own names, or JSON."""
    made = {name: f"content of {name}".encode() for name in names}
    named = {name.replace("__", "."): json.dumps(value) for name, value in contents.items()}
    return made | {name: text.encode() for name, text in named.items()}


MODEL = files("config.json", "model.safetensors")


def fetch(text: str) -> Path:
    name = name_of(text)
    assert name is not None
    return fetch_checkpoint(name)


def fetched(place: Path) -> set[str]:
    """Files of a snapshot."""
    folder = place if place.is_dir() else place.parent
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


MODULES = (
    *("model.safetensors", "modules.json", "1_Pooling/config.json", "2_Dense/config.json"),
    *("2_Dense/model.safetensors", "chat_template.jinja", "additional_chat_templates/tools.jinja"),
)

CHECKPOINTS: dict[str, tuple[Mapping[str, bytes], Iterable[str]]] = {
    "one file": (files("model.safetensors"), ["model.safetensors"]),
    "shards": (
        files(*SHARDS) | {"model.safetensors.index.json": json.dumps(INDEX).encode()},
        [*SHARDS, "model.safetensors.index.json"],
    ),
    "modules and templates": (files(*MODULES, "2_Dense/pytorch_model.bin"), MODULES),
}


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_a_checkpoint_is_fetched_without_code_pickles_and_other_copies(case: str, hub: Hub) -> None:
    own, expected = CHECKPOINTS[case]
    hub.repositories["org/model"] = Repository({**files(*DESCRIBING, *UNWANTED), **own})
    place = fetch("org/model")
    assert fetched(place) == {*DESCRIBING, *expected}
    for name in expected:
        assert (place / name).read_bytes() == own[name]
    for name in UNWANTED:
        assert not hub.seen(f"/{name}")


def test_a_pickle_is_fetched_only_where_there_is_nothing_else(hub: Hub) -> None:
    hub.repositories["org/old"] = Repository(files(*DESCRIBING, "pytorch_model.bin", "x.py"))
    assert fetched(fetch("org/old")) == {
        *DESCRIBING,
        "pytorch_model.bin",
    }


@pytest.mark.parametrize("part", ["Q4_K_M", "q4_k_m", "Q8_0", "F16"])
def test_one_gguf_file_is_chosen_by_its_type(part: str, hub: Hub) -> None:
    hub.repositories["org/model"] = Repository(files(*TYPES, "mmproj-f16.gguf", "config.json"))
    place = fetch(f"org/model:{part}")
    assert fetched(place) == {place.name}
    assert place.stem.lower() == f"tiny-{part.lower()}"


def test_the_only_gguf_file_needs_no_type(hub: Hub) -> None:
    hub.repositories["org/model"] = Repository(files(TYPES[0]))
    assert fetch("org/model").name == TYPES[0]


def test_an_adapter_is_two_files(hub: Hub) -> None:
    own = files("adapter_config.json", "adapter_model.safetensors")
    hub.repositories["org/lora"] = Repository(own | files("README.md", "optimizer.pt", "a.py"))
    assert fetched(fetch_adapter(Name(repository="org/lora"))) == set(own)


BUNDLE = ("manifest.json", "certificate.json", "decoder.onnx", "weights-1.bin", "tokenizer.json")


def in_folder(folder: str, *names: str) -> dict[str, bytes]:
    """A bundle of these files, as its manifest lists them, in a folder."""
    listed = [{"name": name} for name in names if name not in ("manifest.json", "model.sig")]
    made = {name: f"{folder} {name}".encode() for name in names}
    made["manifest.json"] = json.dumps({"files": listed}).encode()
    return {f"{folder}/{name}".lstrip("/"): data for name, data in made.items()}


def bundle(name: str) -> set[str]:
    """Fetch a bundle and return its files, which are all that is in the cache of its folder."""
    files = fetch_bundle(Name(repository="org/bundles", part=name or None))
    (place,) = {str(file).removesuffix(str(path)) for path, file in files.items()}
    assert fetched(Path(place)) == set(map(str, files))
    return fetched(Path(place))


def test_a_bundle_is_fetched_by_its_folder(hub: Hub) -> None:
    whole = files("README.md", "setup.py") | in_folder("int4", *BUNDLE, "model.sig")
    whole |= files("int4/x.py", "int4/weights-0.bin", "int4/packed-0/packed.bin", "int4/notes.json")
    whole |= in_folder("int8", *BUNDLE) | in_folder("int8/vision", *BUNDLE)
    hub.repositories["org/bundles"] = Repository(whole)
    assert bundle("int4") == {*BUNDLE, "model.sig"}
    assert bundle("int8") == {*BUNDLE, *(f"vision/{name}" for name in BUNDLE)}
    assert kind_of(list_files(Name(repository="org/bundles"))) == "bundle"


def test_a_bundle_at_the_root_has_its_parts_but_neither_other_bundles_nor_a_checkpoint(
    hub: Hub,
) -> None:
    whole = in_folder("", *BUNDLE) | in_folder("vision", *BUNDLE)
    others = files("notes.md", "config.json", "pytorch_model.bin") | in_folder("int4", *BUNDLE)
    hub.repositories["org/bundles"] = Repository(whole | others)
    assert bundle("") == set(whole)


@pytest.mark.parametrize("text", ["", "[]", '{"files": 1}', '{"files": [1]}', '{"name": "x"}'])
def test_what_is_no_manifest_is_named(text: str, hub: Hub) -> None:
    whole = in_folder("int4", *BUNDLE) | {"int4/manifest.json": text.encode()}
    hub.repositories["org/bundles"] = Repository(whole)
    with pytest.raises(RepositoryError, match=r"int4/manifest\.json is not the manifest"):
        bundle("int4")


def test_parts_of_a_bundle_are_the_runtime_s() -> None:
    assert set(PARTS) == {parts.VISION, parts.SOUND, parts.TEXT, parts.MTP}


def test_revisions_are_branches_tags_commits_and_requests(hub: Hub) -> None:
    repository = Repository(MODEL)
    hub.repositories["org/model"] = repository
    main = repository.refs["refs/heads/main"]
    other = repository.commit({"config.json": b"{}"}, "refs/heads/dev")
    repository.refs["refs/tags/v1"] = repository.refs["refs/pr/1"] = other
    for text in ("", "@main", "@dev", "@v1", "@refs/pr/1", f"@{other}"):
        commit = main if text in ("", "@main") else other
        place = fetch(f"org/model{text}")
        assert origin_of(place) == f"org/model@{commit}"
        assert (place / "config.json").read_bytes() == repository.commits[commit]["config.json"]


def test_bytes_that_arrived_before_a_cut_are_not_sent_again(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 65_536)
    weights = os.urandom(1_000_000)
    hub.repositories["org/model"] = Repository({"config.json": b"{}", "model.safetensors": weights})
    hub.cuts["GET /cdn/"] = [400_000, 300_000]
    seen = list[int]()
    place = fetch_checkpoint(
        Name(repository="org/model"), progress=lambda _, done, total: seen.append(done)
    )
    assert (place / "model.safetensors").read_bytes() == weights
    assert hub.sent("GET /cdn/") < 1.15 * len(weights)
    assert len([request for request in hub.requests if request.range]) == 2
    assert seen[-1] == len(weights)


def test_an_outage_is_said_and_the_cache_is_used(
    hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    hub.repositories["org/model"] = Repository(MODEL)
    place = fetch("org/model")
    hub.statuses["GET /"] = [503] * 20
    with caplog.at_level(logging.WARNING):
        assert fetch("org/model") == place
    (said,) = [record.message for record in caplog.records if record.name == "ortolan.hub"]
    assert f"using the cached commit {place.name} of org/model" in said


REPOSITORIES: dict[str, Callable[[], Repository]] = {
    "org/tiny-model": lambda: Repository(MODEL),
    "org/other": lambda: Repository(MODEL),
    "org/gated": lambda: Repository(MODEL, gated=True),
    "org/private": lambda: Repository(MODEL, private=True),
    "org/types": lambda: Repository(files(*TYPES)),
    "org/parts": lambda: Repository(files("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")),
    "org/no-config": lambda: Repository(files("model.safetensors")),
    "org/no-weights": lambda: Repository(files("config.json", "flax_model.msgpack")),
    "org/no-shard": lambda: Repository(
        files("config.json", SHARDS[0], model__safetensors__index__json=INDEX)
    ),
    "org/bad-index": lambda: Repository(files("config.json", model__safetensors__index__json=[1])),
    "org/outside": lambda: Repository(MODEL | files("../x")),
    "org/absolute": lambda: Repository(MODEL | files("/etc/x")),
}

REFUSED = (
    *("org/tiny-modelx", "ogr/tiny-model", "org/tiny-model@v9", "org/tiny-model:int4"),
    *("org/types", "org/types:Q5_K_M", "org/gated", "org/private", "org/parts"),
    *("org/no-config", "org/no-weights", "org/no-shard", "org/bad-index"),
    *("org/outside", "org/absolute"),
)


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_checkpoint_is_refused(text: str, hub: Hub, snapshot: SnapshotAssertion) -> None:
    hub.repositories |= {name: repository() for name, repository in REPOSITORIES.items()}
    assert refusal(lambda: fetch(text), hub.url, hub.home) == snapshot
    assert not hub.seen("GET /cdn/")


Fault = Callable[[Hub, Path, pytest.MonkeyPatch], object]


def _another_size(hub: Hub, by: int) -> None:
    weights = bytes(1_000_000)
    hub.repositories["org/model"].commit({"model.safetensors": weights})
    hub.repositories["org/model"].served["model.safetensors"] = bytes(len(weights) + by)


def _full_disk(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(free=20)
    monkeypatch.setattr("ortolan.hub.client.shutil.disk_usage", lambda _: usage)


def _linked_out(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = fetch("org/model") / "config.json"
    (folder / "secret").write_bytes(link.read_bytes())
    link.unlink()
    link.symlink_to(folder / "secret")


def _no_cache(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Path(constants.HF_HUB_CACHE)
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_bytes(b"")  # a file, where a folder is to be


FAULTS: dict[str, Fault] = {
    "too many requests": lambda hub, *_: hub.statuses.update(
        {"/revision/": [429] * 20, "/api/models/org/model": [429] * 20}
    ),
    "fewer bytes than announced": lambda hub, *_: _another_size(hub, -5),
    "more bytes than announced": lambda hub, *_: _another_size(hub, 5_000_000),
    "full disk": _full_disk,
    "link out of the cache": _linked_out,
    "cut file in the cache": lambda *_: os.truncate(
        (fetch("org/model") / "model.safetensors").resolve(), 3
    ),
    "no cache": _no_cache,
    "offline": lambda hub, folder, patch: patch.setattr(constants, "HF_HUB_OFFLINE", True),
    "no library": lambda hub, folder, patch: patch.setitem(sys.modules, "huggingface_hub", None),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_goes_wrong_is_said_with_what_to_do(
    name: str,
    hub: Hub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    hub.repositories["org/model"] = Repository(MODEL)
    FAULTS[name](hub, tmp_path, monkeypatch)
    place = Path(constants.HF_HUB_CACHE)
    whole = [path for path in place.rglob("model.safetensors")]
    text = refusal(lambda: fetch("org/model"), hub.url, tmp_path)
    assert text.partition("): ")[0] == snapshot  # what the library says follows
    assert [path for path in place.rglob("model.safetensors")] == whole  # nothing is kept


def test_a_token_opens_a_private_repository_and_stays_on_the_hub(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["me/private"] = Repository(MODEL, private=True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert fetch("me/private").is_dir()
    assert all(request.token is None for request in hub.seen("/cdn/"))


def test_weights_of_a_refused_config_are_not_fetched(hub: Hub) -> None:
    hub.repositories["org/model"] = Repository(MODEL)

    def refuse(folder: Path) -> None:
        assert (folder / "config.json").is_file()
        raise RepositoryError("not this one")

    with pytest.raises(RepositoryError, match="not this one"):
        fetch_checkpoint(Name(repository="org/model"), check=refuse)
    assert not hub.seen("GET /cdn/")


NAMES: dict[str, Name] = {
    "org/name": Name(repository="org/name"),
    "Org-1/Name.v2_x": Name(repository="Org-1/Name.v2_x"),
    "org/name:Q4_K_M": Name(repository="org/name", part="Q4_K_M"),
    "org/name@refs/pr/1": Name(repository="org/name", revision="refs/pr/1"),
    "org/name:int4@v1.0": Name(repository="org/name", part="int4", revision="v1.0"),
}

NO_NAMES = (
    *("name", "../x", "org/..", "org/name/../../y", "org/name/more", "/org/name", "org//name"),
    *("org/name@../x", "org/name@a..b", "org/name@/x", "org/name:../x", "org/na me", "org/name\n"),
    *("org\\name", "a--b/c", "-org/name", "~/name", "örg/name", ""),
)


@pytest.mark.parametrize("text", [*NAMES, *NO_NAMES])
def test_only_the_form_of_a_name_is_a_name(text: str) -> None:
    assert parsed(text) == NAMES.get(text)


def test_a_path_that_exists_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.chdir(tmp_path)
    assert name_of("org/name") == Name(repository="org/name")
    assert name_of(Path("org/name")) is None
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert name_of("org/name") is None
    for pair in (("org/name", "v1"), ("a/b@v2", "v1"), ("a/b", "../x")):
        assert refusal(partial(name_of, *pair)) == snapshot
    assert name_of("a/b@v1", "v1") == Name(repository="a/b", revision="v1")


def test_a_change_while_fetching_is_said(hub: Hub, snapshot: SnapshotAssertion) -> None:
    repository = hub.repositories["org/model"] = Repository(files("config.json"))
    listing = list_files(Name(repository="org/model"))
    repository.commit({"config.json": b"new"}, "refs/heads/main")
    assert refusal(lambda: download(listing, ["config.json"]), hub.url) == snapshot
