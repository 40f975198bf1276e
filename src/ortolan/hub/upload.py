"""Puts bundles into a repository of the Hugging Face Hub, in one commit."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ortolan.hub.client import library, translated
from ortolan.hub.errors import HubError
from ortolan.hub.name import Name
from ortolan.hub.selection import bundle_folders, files_of_bundle

__all__ = ["Published", "upload"]

_MESSAGE = "Publish with Ortolan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What `upload` did.

    Attributes:
        url: of the repository, or of its branch.
        commit: 40 hexadecimal digits.
    """

    url: str
    commit: str


def upload(
    name: Name,
    contents: Mapping[str, Path | bytes],
    *,
    folders: Iterable[str],
    is_private: bool = False,
) -> Published:
    """Upload files in one commit. A repository and a branch that do not exist are made.

    Args:
        name: of the repository; its revision is the branch.
        contents: files, or what they hold, by path in the repository.
        folders: folders with bundles, "" for the repository itself. Files there that belong to an
            earlier bundle, and are not in `contents`, are deleted.
        is_private: make the repository private.

    Raises:
        HubError: the Hub refuses or cannot be reached, or the repository exists and is public.
    """
    hub = library(name)
    if hub.constants.HF_HUB_OFFLINE:
        raise HubError(f"Cannot publish {name}: HF_HUB_OFFLINE is set. Unset it.")
    api, repository = hub.HfApi(), name.repository
    with translated(name, doing="publish"):
        # without True, the organization decides
        api.create_repo(repository, private=is_private or None, exist_ok=True)
        if name.revision is not None:
            api.create_branch(repository, branch=name.revision, exist_ok=True)
        info = api.model_info(repository, revision=name.revision)
        if is_private and info.private is False:
            raise HubError(
                f"{repository} exists and is public. Make it private on the Hub, or choose another "
                "name."
            )
        done = api.create_commit(
            repository,
            operations=_operations(hub, info, contents, folders),
            commit_message=_MESSAGE,
            revision=name.revision,
            parent_commit=info.sha,
        )
    branch = "" if name.revision is None else f"/tree/{name.revision}"
    return Published(url=f"{hub.constants.ENDPOINT}/{repository}{branch}", commit=done.oid)


def _operations(
    hub: ModuleType, info: Any, contents: Mapping[str, Path | bytes], folders: Iterable[str]
) -> list[Any]:
    """Additions, and deletions of what an earlier bundle in the same place has besides them."""
    names = [entry.rfilename for entry in info.siblings or ()]
    stale: set[str] = set()
    for folder in set(folders).intersection(bundle_folders(names)):
        stale.update(files_of_bundle(names, Name(repository=info.id, part=folder or None)))
    additions = [
        hub.CommitOperationAdd(path_in_repo=path, path_or_fileobj=content)
        for path, content in contents.items()
    ]
    deletions = [hub.CommitOperationDelete(path) for path in sorted(stale - contents.keys())]
    return [*additions, *deletions]
