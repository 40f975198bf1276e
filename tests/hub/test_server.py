"""huggingface_hub works with the local hub as it does with the real one."""

import os
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import (
    HfApi,
    constants,
    errors,
    hf_hub_download,
    list_models,
    scan_cache_dir,
    snapshot_download,
)
from tests.hub.server import TOKEN, Hub, Repository

WEIGHTS = os.urandom(300_000)
SHARDED = {
    "config.json": b'{"model_type": "tiny"}',
    "model-00001-of-00002.safetensors": WEIGHTS,
    "model-00002-of-00002.safetensors": WEIGHTS[::-1],
    "onnx/model.onnx": b"onnx",
}


def contents(folder: str) -> dict[str, bytes]:
    """Files of a snapshot, by path."""
    files = (path for path in Path(folder).rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_snapshot_of_a_sharded_repository_has_the_same_bytes(hub: Hub) -> None:
    hub.repositories["org/model"] = Repository(SHARDED)
    assert contents(snapshot_download("org/model")) == SHARDED
    assert hub.sent("/cdn/") == 2 * len(WEIGHTS) + len(b"onnx")
    assert Path(constants.HF_HUB_CACHE).is_relative_to(hub.home)


def test_second_snapshot_sends_no_file_again(hub: Hub) -> None:
    hub.repositories["org/model"] = Repository(SHARDED)
    snapshot_download("org/model")
    hub.requests.clear()
    snapshot_download("org/model")
    assert hub.seen("GET /cdn/") == hub.seen("GET /org/model/resolve") == []


def test_description_and_tree_tell_sizes_and_hashes_of_lfs_files(hub: Hub) -> None:
    hub.repositories["org/model"] = Repository(SHARDED)
    info = HfApi().model_info("org/model", files_metadata=True)
    sizes = {
        file.rfilename: (file.size, file.lfs and file.lfs.size) for file in info.siblings or ()
    }
    assert sizes["config.json"] == (len(SHARDED["config.json"]), None)
    assert sizes["model-00001-of-00002.safetensors"] == (len(WEIGHTS), len(WEIGHTS))
    top = [item.path for item in HfApi().list_repo_tree("org/model")]
    assert top == [*sorted(set(SHARDED) - {"onnx/model.onnx"}), "onnx"]
    hub.page_size = 2
    paths = [item.path for item in HfApi().list_repo_tree("org/model", recursive=True)]
    assert paths == sorted([*SHARDED, "onnx"])
    assert len(hub.seen("/tree/")) == 1 + 3
    assert [item.path for item in HfApi().list_repo_tree("org/model", "onnx")] == [
        "onnx/model.onnx"
    ]


def test_revisions_are_branches_tags_hashes_and_pull_requests(hub: Hub) -> None:
    repository = hub.repositories["org/model"] = Repository({"a": b"first"})
    first = repository.refs["refs/tags/v1"] = repository.refs["refs/heads/main"]
    repository.commit({"a": b"second"})
    repository.commit({"a": b"third"}, "refs/pr/1")
    for revision, data in {
        "main": b"second",
        "v1": b"first",
        first: b"first",
        "refs/pr/1": b"third",
    }.items():
        assert Path(hf_hub_download("org/model", "a", revision=revision)).read_bytes() == data


def test_cut_download_resumes_where_it_was_cut(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 20_000)  # a part of a chunk is lost
    hub.repositories["org/model"] = Repository(SHARDED)
    name = "model-00001-of-00002.safetensors"
    hub.cuts[name] = [100_000]
    assert Path(hf_hub_download("org/model", name)).read_bytes() == WEIGHTS
    requests = hub.seen("GET /cdn/")
    assert [(request.range, request.sent) for request in requests] == [
        (None, 100_000),
        ("bytes=100000-", 200_000),
    ]


@pytest.mark.parametrize(
    ("requested", "status", "body", "sent"),
    [
        ("bytes=3-5", 206, b"345", "bytes 3-5/10"),
        ("bytes=8-20", 206, b"89", "bytes 8-9/10"),
        ("bytes=10-", 416, None, "bytes */10"),
    ],
)
def test_ranges_are_of_the_whole_file(
    hub: Hub, requested: str, status: int, body: bytes | None, sent: str
) -> None:
    hub.repositories["org/model"] = Repository({"a.onnx": b"0123456789"})
    url = huggingface_hub.hf_hub_url("org/model", "a.onnx")
    reply = huggingface_hub.get_session().get(url, headers={"Range": requested})
    assert (reply.status_code, reply.headers["Content-Range"]) == (status, sent)
    assert body is None or reply.content == body


@pytest.mark.parametrize(
    ("repo", "path", "revision", "error"),
    [
        ("org/other", "a", "main", errors.RepositoryNotFoundError),
        ("org/model", "b", "main", errors.RemoteEntryNotFoundError),
        ("org/model", "a", "v9", errors.RevisionNotFoundError),
    ],
)
@pytest.mark.parametrize("token", [None, TOKEN])
def test_missing_repository_file_or_revision_is_its_own_error(
    hub: Hub, repo: str, path: str, revision: str, error: type[Exception], token: str | None
) -> None:
    hub.repositories["org/model"] = Repository({"a": b""})
    with pytest.raises(error):
        hf_hub_download(repo, path, revision=revision, token=token)


@pytest.mark.parametrize("token", [None, TOKEN])
def test_gated_files_need_access_and_their_names_do_not(hub: Hub, token: str | None) -> None:
    repository = hub.repositories["org/model"] = Repository({"a": b"x"}, gated=True)
    assert [file.rfilename for file in HfApi().model_info("org/model").siblings or ()] == ["a"]
    with pytest.raises(errors.GatedRepoError) as caught:
        hf_hub_download("org/model", "a", token=token)
    assert caught.value.response.status_code == (403 if token else 401)
    repository.granted = True
    assert hf_hub_download("org/model", "a", token=TOKEN)


def test_private_repository_needs_the_token_which_the_other_origin_never_gets(hub: Hub) -> None:
    hub.repositories["org/model"] = Repository(SHARDED, private=True)
    with pytest.raises(errors.RepositoryNotFoundError, match="401"):
        snapshot_download("org/model")
    with pytest.raises(errors.HfHubHTTPError, match="Invalid credentials"):
        HfApi().model_info("org/model", token="hf_other")
    hub.requests.clear()
    assert contents(snapshot_download("org/model", token=TOKEN)) == SHARDED
    assert {request.token for request in hub.seen("/cdn/")} == {None}
    assert {request.token for request in hub.seen("/resolve/")} == {TOKEN}


def test_rate_limits_are_waited_for_as_long_as_they_say(hub: Hub) -> None:
    hub.repositories["org/model"] = Repository(SHARDED)
    hub.statuses = {"/tree/": [429, 429], "GET /org/model/resolve/": [429]}
    hub.retry_after = 7
    assert contents(snapshot_download("org/model")) == SHARDED
    assert hub.sleeps == [8, 8, 8]  # the library adds a second


@pytest.mark.parametrize("served", [b"xx", b"xxxx"], ids=["smaller", "larger"])
@pytest.mark.parametrize("name", ["a.txt", "a.onnx"])
def test_file_of_another_size_than_announced_is_an_error(
    hub: Hub, name: str, served: bytes
) -> None:
    hub.repositories["org/model"] = Repository({name: b"abc"}, served={name: served})
    with pytest.raises(OSError, match=f"should be of size 3 but has size {len(served)}"):
        hf_hub_download("org/model", name)


@pytest.mark.parametrize("name", ["../outside.txt", "/tmp/outside.txt"])
def test_hostile_names_are_listed_as_they_are(hub: Hub, name: str) -> None:
    hub.repositories["org/model"] = Repository({name: b"x"})
    assert [file.path for file in HfApi().list_repo_tree("org/model", recursive=True)][-1] == name
    info = HfApi().model_info("org/model", files_metadata=True)
    assert [file.rfilename for file in info.siblings or ()] == [name]


def test_search_matches_all_words_author_and_tags(hub: Hub) -> None:
    for name in ("org/Tiny-Chat", "org/tiny-base", "organ/tiny-chat", "other/tiny-chat"):
        hub.repositories[name] = Repository(card={"tags": [name[-4:].lower()]})
    hub.repositories["me/tiny-chat"] = Repository(private=True)
    assert {m.id for m in list_models(search="tiny chat")} == {
        "org/Tiny-Chat",
        "organ/tiny-chat",
        "other/tiny-chat",
    }
    assert [m.id for m in list_models(search="chat", author="org")] == ["org/Tiny-Chat"]
    assert [m.id for m in list_models(filter="base")] == ["org/tiny-base"]
    assert "me/tiny-chat" in {m.id for m in list_models(search="tiny", token=TOKEN)}


def test_uploaded_folder_downloads_with_the_same_bytes(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    for name, data in {**SHARDED, "README.md": b"---\nlicense: mit\n---\n"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    api = HfApi(token=TOKEN)
    repo = api.create_repo("bundle", private=True, exist_ok=True).repo_id
    assert api.create_repo("bundle", exist_ok=True).repo_id == repo == "me/bundle"
    done = api.upload_folder(repo_id=repo, folder_path=folder)
    snapshot = snapshot_download(repo, token=TOKEN)
    assert Path(snapshot).name == done.oid
    downloaded = contents(snapshot)
    assert downloaded.pop(".gitattributes")  # every new repository has one
    assert downloaded == contents(str(folder))
    assert len(hub.seen("PUT /lfs/")) == 3
    assert api.upload_folder(repo_id=repo, folder_path=folder).oid == done.oid
    assert len(hub.seen("PUT /lfs/")) == 3


def test_commit_on_a_branch_adds_and_deletes(hub: Hub) -> None:
    repository = hub.repositories["me/model"] = Repository({"a": b"x", "b/c": b"", "b/d": b""})
    repository.commit({}, "refs/heads/dev")
    api = HfApi(token=TOKEN)
    adding = huggingface_hub.CommitOperationAdd("e", b"y")
    deleting = [huggingface_hub.CommitOperationDelete(path) for path in ("a", "b/")]
    api.create_commit("me/model", [adding, *deleting], commit_message="change", revision="dev")
    assert api.list_repo_files("me/model", revision="dev") == ["e"]
    assert len(api.list_repo_files("me/model")) == 3


def test_commit_as_pull_request_leaves_main_as_it_is(hub: Hub) -> None:
    hub.repositories["me/model"] = Repository({"a": b"x"})
    api = HfApi(token=TOKEN)
    done = api.upload_file(
        path_or_fileobj=b"y", path_in_repo="a", repo_id="me/model", create_pr=True
    )
    assert done.pr_revision == "refs/pr/1"
    assert Path(hf_hub_download("me/model", "a")).read_bytes() == b"x"
    assert Path(hf_hub_download("me/model", "a", revision="refs/pr/1")).read_bytes() == b"y"


def test_commit_on_an_outdated_parent_is_refused(hub: Hub) -> None:
    repository = hub.repositories["me/model"] = Repository({"a": b"x"})
    parent = repository.refs["refs/heads/main"]
    repository.commit({"a": b"y"})
    operation = huggingface_hub.CommitOperationAdd("a", b"z")
    with pytest.raises(errors.HfHubHTTPError, match="A commit has happened since"):
        HfApi(token=TOKEN).create_commit(
            "me/model", [operation], commit_message="late", parent_commit=parent
        )


@pytest.mark.parametrize(("repo", "token", "status"), [("me/x", None, 401), ("org/x", TOKEN, 403)])
def test_writing_needs_the_token_and_the_users_own_name(
    hub: Hub, repo: str, token: str | None, status: int
) -> None:
    with pytest.raises(errors.HfHubHTTPError) as caught:
        HfApi().create_repo(repo, token=token)
    assert caught.value.response.status_code == status


def test_offline_with_a_warm_cache_connects_to_nothing(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["org/model"] = Repository(SHARDED)
    warm = snapshot_download("org/model")
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert snapshot_download("org/model") == warm
    assert [cached.repo_id for cached in scan_cache_dir().repos] == ["org/model"]
    with pytest.raises(errors.LocalEntryNotFoundError):
        snapshot_download("org/other")
    assert hub.requests == []


def test_other_process_uses_the_server_through_its_environment(hub: Hub) -> None:
    hub.repositories["org/model"] = Repository(SHARDED)
    code = "import huggingface_hub as h; print(h.snapshot_download('org/model'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **hub.environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert contents(done.stdout.strip()) == SHARDED
    assert done.stdout.startswith(str(hub.home))
    assert hub.connections("/cdn/") <= 3
    assert hub.seen("agent") == []
