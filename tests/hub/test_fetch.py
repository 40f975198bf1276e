"""What is fetched for a name, and what is not; every refusal in one line."""

import json
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants
from tests.hub.server import TOKEN, Hub, Repository

from ortolan.errors import OrtolanError
from ortolan.hub.client import download, list_files
from ortolan.hub.errors import HubError, RepositoryError
from ortolan.hub.fetch import fetch_adapter, fetch_bundle, fetch_checkpoint, kind_of, origin_of
from ortolan.hub.name import Name, name_of, parsed
from ortolan.hub.selection import PARTS
from ortolan.runtime.bundle import parts

DESCRIBING = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
UNWANTED = (
    "README.md",
    "modeling_own.py",
    "requirements.txt.bak",
    "pytorch_model.bin",
    "consolidated.safetensors",
    "tf_model.h5",
    "onnx/model.onnx",
    "original/params.json",
    "model.safetensors.old",
    "training_args.bin",
)
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = {"weight_map": {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[0]}}
TYPES = tuple(f"Tiny-{kind}.gguf" for kind in ("Q4_K_M", "Q4_K_S", "Q8_0", "f16"))


def files(*names: str, **contents: object) -> dict[str, bytes]:
    """Files that hold their own names, or JSON."""
    made = {name: f"content of {name}".encode() for name in names}
    named = {name.replace("__", "."): json.dumps(value) for name, value in contents.items()}
    return made | {name: text.encode() for name, text in named.items()}


def fetched(place: Path) -> set[str]:
    """Files of a snapshot."""
    folder = place if place.is_dir() else place.parent
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


CHECKPOINTS: dict[str, tuple[Mapping[str, bytes], Iterable[str]]] = {
    "one file": (files("model.safetensors"), ["model.safetensors"]),
    "shards": (
        files(*SHARDS) | {"model.safetensors.index.json": json.dumps(INDEX).encode()},
        [*SHARDS, "model.safetensors.index.json"],
    ),
    "modules and templates": (
        files(
            "model.safetensors",
            "modules.json",
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            "2_Dense/pytorch_model.bin",
            "chat_template.jinja",
            "additional_chat_templates/tools.jinja",
        ),
        [
            "model.safetensors",
            "modules.json",
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            "chat_template.jinja",
            "additional_chat_templates/tools.jinja",
        ],
    ),
}


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_a_checkpoint_is_fetched_without_code_pickles_and_other_copies(case: str, hub: Hub) -> None:
    own, expected = CHECKPOINTS[case]
    hub.repositories["org/model"] = Repository({**files(*DESCRIBING, *UNWANTED), **own})
    place = fetch_checkpoint(Name(repository="org/model"))
    assert fetched(place) == {*DESCRIBING, *expected}
    for name in expected:
        assert (place / name).read_bytes() == own[name]
    for name in UNWANTED:
        assert not hub.seen(f"/{name}")


def test_a_pickle_is_fetched_only_where_there_is_nothing_else(hub: Hub) -> None:
    hub.repositories["org/old"] = Repository(files(*DESCRIBING, "pytorch_model.bin", "x.py"))
    assert fetched(fetch_checkpoint(Name(repository="org/old"))) == {
        *DESCRIBING,
        "pytorch_model.bin",
    }


@pytest.mark.parametrize("part", ["Q4_K_M", "q4_k_m", "Q8_0", "F16"])
def test_one_gguf_file_is_chosen_by_its_type(part: str, hub: Hub) -> None:
    hub.repositories["org/model"] = Repository(files(*TYPES, "mmproj-f16.gguf", "config.json"))
    place = fetch_checkpoint(Name(repository="org/model", part=part))
    assert fetched(place) == {place.name}
    assert place.stem.lower() == f"tiny-{part.lower()}"


def test_the_only_gguf_file_needs_no_type(hub: Hub) -> None:
    hub.repositories["org/model"] = Repository(files(TYPES[0]))
    assert fetch_checkpoint(Name(repository="org/model")).name == TYPES[0]


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
    repository = Repository(files("config.json", "model.safetensors"))
    hub.repositories["org/model"] = repository
    main = repository.refs["refs/heads/main"]
    other = repository.commit({"config.json": b"{}"}, "refs/heads/dev")
    repository.refs["refs/tags/v1"] = repository.refs["refs/pr/1"] = other
    for text, commit in {
        "org/model": main,
        "org/model@main": main,
        "org/model@dev": other,
        "org/model@v1": other,
        "org/model@refs/pr/1": other,
        f"org/model@{other}": other,
    }.items():
        name = name_of(text)
        assert name is not None
        place = fetch_checkpoint(name)
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


def test_a_warm_cache_needs_no_connection(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["org/model"] = Repository(files(*DESCRIBING, "model.safetensors"))
    place = fetch_checkpoint(Name(repository="org/model"))
    commit = place.name
    count = len(hub.requests)
    assert fetch_checkpoint(Name(repository="org/model", revision=commit)) == place
    assert len(hub.requests) == count
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch_checkpoint(Name(repository="org/model")) == place
    assert len(hub.requests) == count


def test_an_outage_is_said_and_the_cache_is_used(
    hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    hub.repositories["org/model"] = Repository(files("config.json", "model.safetensors"))
    place = fetch_checkpoint(Name(repository="org/model"))
    hub.statuses["GET /"] = [503] * 20
    with caplog.at_level(logging.WARNING):
        assert fetch_checkpoint(Name(repository="org/model")) == place
    (said,) = [record.message for record in caplog.records if record.name == "ortolan.hub"]
    assert f"using the cached commit {place.name} of org/model" in said


def refused(name: Name, error: type[HubError], *words: str) -> None:
    with pytest.raises(error) as raised:
        fetch_checkpoint(name)
    assert isinstance(raised.value, OrtolanError)
    for word in words:
        assert word in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_misspelt_name_names_its_neighbours(hub: Hub) -> None:
    hub.repositories["org/tiny-model"] = Repository(files("config.json"))
    hub.repositories["org/other"] = Repository(files("config.json"))
    refused(
        Name(repository="org/tiny-modelx"),
        RepositoryError,
        "org/tiny-modelx: no such file or folder, and no repository",
        "did you mean org/tiny-model?",
        "hf auth login",
    )
    refused(Name(repository="ogr/tiny-model"), RepositoryError, "did you mean org/tiny-model?")


def test_every_refusal_of_the_hub_says_what_to_do(hub: Hub) -> None:
    model = files("config.json", "model.safetensors")
    hub.repositories["org/gated"] = Repository(model, gated=True)
    hub.repositories["org/private"] = Repository(model, private=True)
    hub.repositories["org/busy"] = Repository(model)
    refused(Name(repository="org/gated"), HubError, "gated. Accept its terms at", "HF_TOKEN")
    refused(Name(repository="org/private"), RepositoryError, "If it is private, log in")
    refused(Name(repository="org/busy", revision="v9"), RepositoryError, "has no revision v9")
    hub.statuses["/revision/"] = hub.statuses["/api/models/org/busy"] = [429] * 20
    refused(Name(repository="org/busy"), HubError, "answered 429", "Wait a few minutes")


def test_a_token_opens_a_private_repository_and_stays_on_the_hub(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["me/private"] = Repository(
        files("config.json", "model.safetensors"), private=True
    )
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert fetch_checkpoint(Name(repository="me/private")).is_dir()
    assert all(request.token is None for request in hub.seen("/cdn/"))


WRONG: dict[str, tuple[Mapping[str, bytes], str | None, str]] = {
    "several GGUF files": (files(*TYPES), None, "4 GGUF files fit. Name one as org/model:TYPE"),
    "no such type": (files(*TYPES), "Q5_K_M", "no GGUF files fit"),
    "a split GGUF": (
        files("m-00001-of-00002.gguf", "m-00002-of-00002.gguf"),
        None,
        "split into 2 GGUF files",
    ),
    "no config": (files("model.safetensors"), None, "it has no config.json"),
    "no weights": (files("config.json", "flax_model.msgpack"), None, "has neither"),
    "a part of a checkpoint": (files("config.json", "model.safetensors"), "int4", "no GGUF file"),
    "a missing shard": (
        files("config.json", SHARDS[0], model__safetensors__index__json=INDEX),
        None,
        f"names '{SHARDS[1]}', which is not in the repository",
    ),
    "a damaged index": (
        files("config.json", model__safetensors__index__json=[1]),
        None,
        "not an index of weights",
    ),
    "a name that leaves the folder": (
        files("config.json", "model.safetensors", "../x"),
        None,
        "'../x', which would be written elsewhere",
    ),
    "an absolute name": (
        files("config.json", "model.safetensors", "/etc/x"),
        None,
        "'/etc/x', which would be written elsewhere",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_repository_that_is_no_checkpoint_is_refused(case: str, hub: Hub) -> None:
    own, part, words = WRONG[case]
    hub.repositories["org/model"] = Repository(own)
    refused(Name(repository="org/model", part=part), RepositoryError, words)
    assert not hub.seen("GET /cdn/")


@pytest.mark.parametrize("by", [-5, 5_000_000])
def test_a_file_of_another_size_than_announced_is_refused(by: int, hub: Hub) -> None:
    repository = Repository({"config.json": b"{}", "model.safetensors": bytes(1_000_000)})
    repository.served["model.safetensors"] = bytes(1_000_000 + by)
    hub.repositories["org/model"] = repository
    refused(Name(repository="org/model"), HubError, "org/model")
    cache = Path(constants.HF_HUB_CACHE)
    assert not [path for path in cache.rglob("*") if path.name == "model.safetensors"]


def test_what_does_not_fit_is_not_fetched(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["org/model"] = Repository(files("config.json", "model.safetensors"))
    usage = SimpleNamespace(free=20)
    monkeypatch.setattr("ortolan.hub.client.shutil.disk_usage", lambda _: usage)
    refused(Name(repository="org/model"), HubError, "MB free", "HF_HOME")
    assert not hub.seen("GET /org/model/resolve")


def swap(link: Path, target: Path) -> None:
    link.unlink()
    link.symlink_to(target)


def test_a_link_out_of_the_cache_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["org/model"] = Repository(files("config.json", "model.safetensors"))
    place = fetch_checkpoint(Name(repository="org/model"))
    secret = tmp_path / "secret"
    secret.write_bytes((place / "config.json").read_bytes())
    swap(place / "config.json", secret)
    refused(Name(repository="org/model"), HubError, "is a link out of the cache")


def test_a_cached_file_that_was_cut_is_refused(hub: Hub) -> None:
    hub.repositories["org/model"] = Repository(files("config.json", "model.safetensors"))
    place = fetch_checkpoint(Name(repository="org/model"))
    os.truncate((place / "model.safetensors").resolve(), 3)
    refused(Name(repository="org/model"), HubError, "has 3 bytes, but the Hub announces")


def test_weights_of_a_refused_config_are_not_fetched(hub: Hub) -> None:
    hub.repositories["org/model"] = Repository(files("config.json", "model.safetensors"))

    def refuse(folder: Path) -> None:
        assert (folder / "config.json").is_file()
        raise RepositoryError("not this one")

    with pytest.raises(RepositoryError, match="not this one"):
        fetch_checkpoint(Name(repository="org/model"), check=refuse)
    assert not hub.seen("GET /cdn/")


def test_a_cache_that_cannot_be_written_is_said(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["org/model"] = Repository(files("config.json", "model.safetensors"))
    cache = Path(constants.HF_HUB_CACHE)
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_bytes(b"")  # a file, where a folder is to be
    refused(Name(repository="org/model"), HubError, "Cannot fetch org/model")


NAMES: dict[str, Name | None] = {
    "org/name": Name(repository="org/name"),
    "Org-1/Name.v2_x": Name(repository="Org-1/Name.v2_x"),
    "org/name:Q4_K_M": Name(repository="org/name", part="Q4_K_M"),
    "org/name@refs/pr/1": Name(repository="org/name", revision="refs/pr/1"),
    "org/name:int4@v1.0": Name(repository="org/name", part="int4", revision="v1.0"),
} | dict.fromkeys(
    [
        "name",
        "../x",
        "org/..",
        "org/name/../../y",
        "org/name/more",
        "/org/name",
        "org//name",
        "org/name@../x",
        "org/name@a..b",
        "org/name@/x",
        "org/name:../x",
        "org/na me",
        "org/name\n",
        "org\\name",
        "a--b/c",
        "-org/name",
        "~/name",
        "örg/name",
        "",
    ]
)


@pytest.mark.parametrize("text", NAMES)
def test_only_the_form_of_a_name_is_a_name(text: str) -> None:
    assert parsed(text) == NAMES[text]


def test_a_path_that_exists_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert name_of("org/name") == Name(repository="org/name")
    assert name_of(Path("org/name")) is None
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert name_of("org/name") is None
    with pytest.raises(HubError, match="org/name is a path"):
        name_of("org/name", "v1")
    with pytest.raises(HubError, match="Two revisions: v2 in a/b@v2, and v1"):
        name_of("a/b@v2", "v1")
    with pytest.raises(HubError, match="must be a branch"):
        name_of("a/b", "../x")
    assert name_of("a/b@v1", "v1") == Name(repository="a/b", revision="v1")


def test_a_missing_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(HubError, match=r"org/name: no such file or folder.*ortolan\[hub\]"):
        list_files(Name(repository="org/name"))


def test_offline_without_a_cache_is_said(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refused(Name(repository="org/model"), HubError, "not in the cache", "HF_HUB_OFFLINE is set")
    assert hub.requests == []


def test_a_change_while_fetching_is_said(hub: Hub) -> None:
    repository = hub.repositories["org/model"] = Repository(files("config.json"))
    listing = list_files(Name(repository="org/model"))
    repository.commit({"config.json": b"new"}, "refs/heads/main")
    with pytest.raises(HubError, match="changed while it was fetched"):
        download(listing, ["config.json"])
