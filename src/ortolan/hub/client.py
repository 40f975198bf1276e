"""Lists and fetches the files of a repository, through `huggingface_hub`.

Cache, token, endpoint and offline mode are those of the library: `HF_HOME`, `HF_TOKEN`,
`HF_ENDPOINT`, `HF_HUB_OFFLINE`.
"""

import difflib
import glob
import logging
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import StringIO
from math import inf
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from ortolan import files
from ortolan.distribution import pip_install
from ortolan.hub import HubError, RepositoryError
from ortolan.hub.name import Name

Progress = Callable[[str, int, int], None]
"""Called with the name of a step, and how many of how many units are done."""

STEP = "fetch"

_log = logging.getLogger("ortolan.hub")

_COMMIT = re.compile(r"[0-9a-f]{40}")

_MAX_FILES = 100_000

_NEAR = 3
"""Names that are suggested for one that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files of a repository at a commit, with their sizes in bytes.

    Attributes:
        is_cached: whether the Hub was not asked, so that only cached files can be had.
    """

    name: Name
    commit: str
    sizes: Mapping[str, int]
    is_cached: bool = False


def library(name: object) -> ModuleType:
    """Import `huggingface_hub`."""
    try:
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
        from huggingface_hub import get_cached_repo_tree  # noqa: F401 - version 2 has it
    except ImportError as error:
        # tokenizers installs it too, in any version
        raise HubError(
            f"{name}: no such file or folder. If it is a name on the Hugging Face Hub, run: "
            f"{pip_install('hub')}"
        ) from error
    return huggingface_hub


def list_files(name: Name) -> Listing:
    """List the files of a repository; those of the cache if the Hub cannot be reached."""
    hub = library(name)
    if hub.constants.HF_HUB_OFFLINE:
        return _cached(name, "HF_HUB_OFFLINE is set")
    if name.revision is not None and _COMMIT.fullmatch(name.revision):
        with suppress(HubError):  # a commit never changes
            return _cached(name, "")
    api = hub.HfApi()
    try:
        info = api.model_info(name.repository, revision=name.revision, files_metadata=True)
    except hub.errors.HTTPError as error:
        problem = _outage(error)
        if problem is None:
            with translated(name):
                raise
        listing = _cached(name, problem)
        _log.warning("%s: using the cached commit %s of %s.", problem, listing.commit, name)
        return listing
    sizes = {entry.rfilename: entry.size or 0 for entry in info.siblings or ()}
    if not isinstance(info.sha, str) or _COMMIT.fullmatch(info.sha) is None:
        raise HubError(f"{name}: the Hub names no commit. Check HF_ENDPOINT.")
    return _checked(Listing(name=name, commit=info.sha, sizes=sizes))


def download(listing: Listing, names: Collection[str], *, progress: Progress | None = None) -> Path:
    """Fetch files that are not in the cache yet.

    `progress` is called as bytes arrive; by default the library draws its bars.
    """
    name = listing.name
    hub = library(name)
    cache = Path(hub.constants.HF_HUB_CACHE)
    find = partial(hub.try_to_load_from_cache, name.repository, revision=listing.commit)
    total = sum(listing.sizes[file] for file in names if not isinstance(find(file), str))
    _check_disk(cache, total, name)
    with translated(name):
        folder = hub.snapshot_download(
            name.repository,
            revision=name.revision,
            allow_patterns=[glob.escape(file) for file in names],
            local_files_only=listing.is_cached,
            **({} if progress is None else {"tqdm_class": _bars(progress, total)}),
        )
    folder = Path(folder)
    if folder.name != listing.commit:
        raise HubError(f"{name} changed while it was fetched. Run the command again.")
    for file in names:
        _check_file(folder, file, listing)
    return folder


@contextmanager
def translated(name: Name, *, doing: str = "fetch") -> Iterator[None]:
    """Turn errors of the library into errors that say what to do."""
    hub = library(name)
    errors, repository = hub.errors, name.repository
    log_in = "log in with `hf auth login`, or set HF_TOKEN"
    try:
        yield
    except errors.GatedRepoError as error:
        raise HubError(
            f"{repository} is gated. Accept its terms at {hub.constants.ENDPOINT}/{repository}, "
            f"then {log_in}."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise RepositoryError(f"{repository} has no revision {name.revision}.") from error
    except errors.RepositoryNotFoundError as error:
        raise RepositoryError(
            f"{name}: no such file or folder, and no repository {repository} on "
            f"{hub.constants.ENDPOINT}{_nearest(hub, repository)}. If it is private, {log_in}."
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        advice = {
            401: f"To get access, {log_in}.",
            403: "Check the permissions of your token.",
            429: f"Wait a few minutes; to be allowed more requests, {log_in}.",
        }.get(status, "Try again later.")
        said = " ".join(str(error.server_message or "no reason given").split())
        raise HubError(f"{name}: the Hub answered {status} ({said:.200}). {advice}") from error
    except (errors.HTTPError, errors.LocalEntryNotFoundError) as error:
        raise HubError(
            f"{name}: lost the connection to {hub.constants.ENDPOINT} "
            f"({type(error).__name__}). Run the command again; complete files are kept."
        ) from error
    except OSError as error:
        problem = files.described(error) if error.errno else " ".join(f"{error}".split())
        raise HubError(
            f"Cannot {doing} {name} (HF_HOME: {hub.constants.HF_HOME}): {problem:.300}"
        ) from error


def _cached(name: Name, problem: str) -> Listing:
    """List the files of a repository as the cache knows them, without a connection."""
    hub = library(name)
    try:
        tree = hub.get_cached_repo_tree(name.repository, revision=name.revision)
        folder = hub.snapshot_download(
            name.repository, revision=name.revision, allow_patterns=[], local_files_only=True
        )
    except (OSError, ValueError, hub.errors.CachedRepoTreeNotFoundError) as error:
        raise HubError(
            f"{name}: no such file or folder, not in the cache of the Hugging Face Hub, and "
            f"{problem}."
        ) from error
    sizes = {entry.path: entry.size for entry in tree}
    return _checked(Listing(name=name, commit=Path(folder).name, sizes=sizes, is_cached=True))


def _checked(listing: Listing) -> Listing:
    """Reject names of files that would leave the folder of the repository."""
    if len(listing.sizes) > _MAX_FILES:
        raise RepositoryError(f"{listing.name} has {len(listing.sizes)} files, over {_MAX_FILES}.")
    for file in listing.sizes:
        path = PurePosixPath(file)
        if path.is_absolute() or ".." in path.parts or "\\" in file or not file.isprintable():
            raise RepositoryError(
                f"{listing.name} has a file named {file!r:.80}, which would be written elsewhere. "
                "Do not trust this repository."
            )
    return listing


def _check_file(folder: Path, file: str, listing: Listing) -> None:
    """Reject a cached file that is of another size, or a link out of the repository's cache."""
    path = folder / file
    if not path.is_file():
        raise HubError(f"{listing.name}: {file} is not in the cache, and the Hub was not asked.")
    if not path.resolve().is_relative_to(folder.parent.parent.resolve()):
        raise HubError(f"{path} is a link out of the cache. Remove it, and fetch {listing.name}.")
    size = path.stat().st_size
    if size != listing.sizes[file]:
        raise HubError(
            f"{path} has {size} bytes, but the Hub announces {listing.sizes[file]}. Remove it, "
            "and run the command again."
        )


def _check_disk(cache: Path, needed: int, name: Name) -> None:
    """Refuse what does not fit before it is fetched."""
    place = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise HubError(
            f"{name} needs {needed / 1e6:.0f} MB, but {place} has {free / 1e6:.0f} MB free. Free "
            "some disk space, or set HF_HOME to a folder on another disk."
        )


def _outage(error: Exception) -> str | None:
    """What keeps the Hub from answering; `None` if it has answered."""
    response = getattr(error, "response", None)
    if response is None:
        return f"the Hub cannot be reached ({type(error).__name__})"
    status = response.status_code
    return f"the Hub is out of order ({status})" if status >= 500 else None


def _nearest(hub: ModuleType, repository: str) -> str:
    """Names close to one that does not exist, as an addition to a sentence."""
    owner, own = repository.split("/")
    try:
        searches = ({"search": own}, {"author": owner})
        models = [model for by in searches for model in hub.HfApi().list_models(**by, limit=100)]
    except (OSError, hub.errors.HTTPError):
        return ""  # an endpoint without search
    names = {model.id for model in models}
    near = difflib.get_close_matches(repository, names, n=_NEAR)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def _bars(progress: Progress, total: int) -> type:
    """A class of progress bars that draws nothing and reports bytes."""
    from tqdm import tqdm  # comes with huggingface_hub

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **{**options, "file": StringIO(), "mininterval": inf})

        def update(self, n: float | None = 1) -> bool | None:
            drawn: bool | None = super().update(n)
            if self.unit == "B":
                progress(STEP, min(int(self.n), total), total)
            return drawn

    return Bar
