"""huggingface_hub works with the local hub where no test of a command shows it."""

from pathlib import Path

import pytest
from huggingface_hub import HfApi, errors, hf_hub_download, snapshot_download
from tests.hub.server import TOKEN, Hub, Repository


def test_rate_limits_are_waited_for_as_long_as_they_say(hub: Hub) -> None:
    hub.repositories["org/model"] = Repository({"config.json": b"{}", "a.onnx": b"x"})
    hub.statuses = {"/tree/": [429, 429], "GET /org/model/resolve/": [429]}
    hub.retry_after = 7
    folder = Path(snapshot_download("org/model"))
    assert (folder / "a.onnx").read_bytes() == b"x"
    assert hub.sleeps == [8, 8, 8]  # the library adds a second


@pytest.mark.parametrize(("token", "status"), [(None, 401), (TOKEN, 403)])
def test_gated_files_need_access_and_their_names_do_not(
    token: str | None, status: int, hub: Hub
) -> None:
    hub.repositories["org/model"] = Repository({"a": b"x"}, gated=True)
    assert HfApi().list_repo_files("org/model") == ["a"]
    with pytest.raises(errors.GatedRepoError) as caught:
        hf_hub_download("org/model", "a", token=token)
    assert caught.value.response.status_code == status


def test_uploaded_folder_downloads_with_the_same_bytes(hub: Hub, tmp_path: Path) -> None:
    files = {"empty.txt": b"", "README.md": b"# Tiny", "int4/a.onnx": bytes(300_000)}
    for name, data in files.items():
        (tmp_path / "up" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "up" / name).write_bytes(data)
    api = HfApi(token=TOKEN)
    api.create_repo("me/bundle", private=True)
    with pytest.raises(errors.HfHubHTTPError, match="409"):
        api.create_repo("me/bundle")
    done = api.upload_folder(repo_id="me/bundle", folder_path=tmp_path / "up")
    assert hub.repositories["me/bundle"].commits[done.oid] == files
    folder = Path(snapshot_download("me/bundle", token=TOKEN))
    assert {name: (folder / name).read_bytes() for name in files} == files
    assert len(hub.seen("PUT /lfs/")) == 2
    assert {request.token for request in hub.seen("/cdn/")} == {None}
