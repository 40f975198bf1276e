"""Model repositories in memory, described as the Hugging Face Hub describes them."""

import hashlib
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from types import MappingProxyType
from typing import Any

LFS_SUFFIXES = (".bin", ".data", ".gguf", ".onnx", ".safetensors")
LFS_BYTES = 1_000_000
"""Files above this size, in bytes, are in LFS whatever their name."""

Json = Any


@dataclass
class Repository:
    """A model repository with one commit on `main`; `commit` adds more.

    Attributes:
        files: of the first commit, by path. Hostile paths are listed as they are.
        private: needs the user's token.
        gated: its files need the user's token, and `granted`.
        granted: the user has access to the gated files.
        card: more fields of its description, such as `tags` and `downloads`.
        served: contents sent instead of those announced, by path.
        commits: files of each commit, by its hash.
        refs: commit hashes, by `refs/heads/main`, `refs/tags/v1` or `refs/pr/1`.
    """

    files: InitVar[Mapping[str, bytes]] = MappingProxyType({})
    private: bool = False
    gated: bool = False
    granted: bool = False
    card: dict[str, Json] = field(default_factory=dict)
    served: dict[str, bytes] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(init=False, default_factory=dict)
    refs: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self, files: Mapping[str, bytes]) -> None:
        self.commit(files)

    def commit(
        self,
        changes: Mapping[str, bytes | None],
        ref: str = "refs/heads/main",
        parent: str | None = None,
    ) -> str:
        """Add a commit and point a ref to it.

        Args:
            changes: contents by path; None deletes the file.
            ref: is made where there is none.
            parent: hash; by default, what the ref points to, or else `main`.

        Returns:
            Its hash.
        """
        parent = parent or self.refs.get(ref) or self.refs.get("refs/heads/main", "")
        files = {**self.commits.get(parent, {}), **changes}
        commit = {path: data for path, data in files.items() if data is not None}
        identity = repr((len(self.commits), parent, sorted(commit.items())))
        sha = hashlib.sha1(identity.encode()).hexdigest()
        self.commits[sha] = commit
        self.refs[ref] = sha
        return sha

    def resolve(self, revision: str) -> str | None:
        """Hash of the commit that a branch, a tag, a whole ref or a hash names."""
        names = (revision, f"refs/heads/{revision}", f"refs/tags/{revision}")
        sha = next((self.refs[name] for name in names if name in self.refs), revision)
        return sha if sha in self.commits else None


def is_lfs(path: str, size: int) -> bool:
    return path.endswith(LFS_SUFFIXES) or size > LFS_BYTES


def etag(data: bytes, lfs: bool) -> str:
    """Identity of contents: SHA-256 in LFS, git's hash otherwise."""
    if lfs:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def entry(path: str, data: bytes) -> dict[str, Json]:
    """A file as listings of a tree have it."""
    described = {"type": "file", "path": path, "size": len(data), "oid": etag(data, lfs=False)}
    if is_lfs(path, len(data)):
        sha256 = etag(data, lfs=True)
        version = "version https://git-lfs.github.com/spec/v1"
        pointer = f"{version}\noid sha256:{sha256}\nsize {len(data)}\n".encode()
        described["oid"] = etag(pointer, lfs=False)
        described["lfs"] = {"oid": sha256, "size": len(data), "pointerSize": len(pointer)}
    return described


def sibling(path: str, data: bytes) -> dict[str, Json]:
    """A file as the description of a repository has it."""
    listed = entry(path, data)
    described = {"rfilename": path, "size": len(data), "blobId": listed["oid"]}
    if "lfs" in listed:
        described["lfs"] = {**listed["lfs"], "sha256": listed["lfs"]["oid"]}
    return described


def describe(name: str, repository: Repository, sha: str, blobs: bool) -> dict[str, Json]:
    """A repository at a commit; with sizes and hashes of its files if `blobs`."""
    files = repository.commits[sha].items()
    return {
        "id": name,
        "author": name.split("/")[0],
        "sha": sha,
        "private": repository.private,
        "gated": "manual" if repository.gated else False,
        "downloads": 0,
        "tags": [],
        "lastModified": "2026-01-01T00:00:00.000Z",
        "siblings": [sibling(*file) if blobs else {"rfilename": file[0]} for file in files],
        **repository.card,
    }


def tree(files: Mapping[str, bytes], folder: str, recursive: bool) -> list[dict[str, Json]]:
    """Entries of a folder, sorted; those of its folders too where recursive."""
    start = f"{folder}/" if folder else ""
    entries = {}
    for path, data in files.items():
        if not path.startswith(start):
            continue
        parts = path.removeprefix(start).split("/")
        for depth in range(1, len(parts)):
            name = start + "/".join(parts[:depth])
            oid = hashlib.sha1(name.encode()).hexdigest()
            entries[name] = {"type": "directory", "path": name, "size": 0, "oid": oid}
            if not recursive:
                break
        if recursive or len(parts) == 1:
            entries[path] = entry(path, data)
    return [entries[path] for path in sorted(entries)]
