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
        kept = {path: data for path, data in files.items() if data is not None}
        sha = hashlib.sha1(repr((len(self.commits), parent, sorted(kept.items()))).encode())
        self.commits[sha.hexdigest()] = kept
        self.refs[ref] = sha.hexdigest()
        return sha.hexdigest()

    def resolve(self, revision: str) -> str | None:
        """Hash of the commit that a branch, a tag, a whole ref or a hash names."""
        names = (revision, f"refs/heads/{revision}", f"refs/tags/{revision}")
        found = next((self.refs[name] for name in names if name in self.refs), revision)
        return found if found in self.commits else None


def is_lfs(path: str, size: int) -> bool:
    return path.endswith(LFS_SUFFIXES) or size > LFS_BYTES


def entry(path: str, data: bytes) -> dict[str, Json]:
    """A file as listings of a tree have it."""
    blob, lfs = data, {}
    if is_lfs(path, len(data)):
        sha256 = hashlib.sha256(data).hexdigest()
        version = "version https://git-lfs.github.com/spec/v1"
        blob = f"{version}\noid sha256:{sha256}\nsize {len(data)}\n".encode()
        lfs = {"lfs": {"oid": sha256, "size": len(data), "pointerSize": len(blob)}}
    oid = hashlib.sha1(b"blob %d\0" % len(blob) + blob).hexdigest()
    return {"type": "file", "path": path, "size": len(data), "oid": oid, **lfs}


def etag(described: Mapping[str, Json]) -> str:
    """Identity of the contents: SHA-256 in LFS, git's hash otherwise."""
    return str(described.get("lfs", described)["oid"])


def sibling(path: str, data: bytes, blobs: bool) -> dict[str, Json]:
    """A file as the description of a repository has it."""
    if not blobs:
        return {"rfilename": path}
    described = entry(path, data)
    found = {"rfilename": path, "size": len(data), "blobId": described["oid"]}
    if "lfs" in described:
        found["lfs"] = {**described["lfs"], "sha256": described["lfs"]["oid"]}
    return found


def tree(files: Mapping[str, bytes], folder: str, recursive: bool) -> list[dict[str, Json]]:
    """Entries of a folder, sorted; those of its folders too where recursive."""
    start = f"{folder}/" if folder else ""
    found = {}
    for path, data in files.items():
        if not path.startswith(start):
            continue
        parts = path.removeprefix(start).split("/")
        for depth in range(1, len(parts)):
            name = start + "/".join(parts[:depth])
            oid = hashlib.sha1(name.encode()).hexdigest()
            found[name] = {"type": "directory", "path": name, "size": 0, "oid": oid}
            if not recursive:
                break
        if recursive or len(parts) == 1:
            found[path] = entry(path, data)
    return [found[path] for path in sorted(found)]
