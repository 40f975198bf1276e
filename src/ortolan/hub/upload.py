"""Puts bundles into a repository of the Hugging Face Hub, in one commit."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ortolan.hub import HubError, RepositoryError
from ortolan.hub.client import Listing, library, list_files, translated
from ortolan.hub.fetch import files_of_bundle
from ortolan.hub.name import Name
from ortolan.hub.selection import bundle_folders

_MESSAGE = "Publish with Ortolan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The URL of the repository, or of its branch, and the commit of an upload."""

    url: str
    commit: str


def upload(
    name: Name,
    contents: Mapping[str, Path | bytes],
    *,
    folders: Iterable[str],
    is_private: bool = False,
) -> Published:
    """Upload files in one commit. A repository and a branch that do not exist are made."""
    hub = library(name)
    if hub.constants.HF_HUB_OFFLINE:
        raise HubError(f"Cannot publish {name}: HF_HUB_OFFLINE is set. Unset it.")
    api, repository = hub.HfApi(), name.repository
    with translated(name, doing="publish"):
        # without True, the organization decides
        api.create_repo(repository, private=is_private or None, exist_ok=True)
        if name.revision is not None:
            api.create_branch(repository, branch=name.revision, exist_ok=True)
        if is_private and api.model_info(repository).private is False:
            raise HubError(
                f"{repository} exists and is public. Make it private on the Hub, or choose another "
                "name."
            )
        listing = list_files(name)
        stale = _files_of_bundles(listing, folders) - contents.keys()
        done = api.create_commit(
            repository,
            operations=[
                *(hub.CommitOperationAdd(path, content) for path, content in contents.items()),
                *(hub.CommitOperationDelete(path) for path in sorted(stale)),
            ],
            commit_message=_MESSAGE,
            revision=name.revision,
            parent_commit=listing.commit,
        )
    branch = "" if name.revision is None else f"/tree/{name.revision}"
    return Published(url=f"{hub.constants.ENDPOINT}/{repository}{branch}", commit=done.oid)


def _files_of_bundles(listing: Listing, folders: Iterable[str]) -> set[str]:
    """Files of the bundles that are in these folders; a damaged one stays as it is."""
    found: set[str] = set()
    for folder in set(folders).intersection(bundle_folders(listing.sizes)):
        with contextlib.suppress(RepositoryError):
            found.update(files_of_bundle(listing, folder))
    return found
