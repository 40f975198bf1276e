"""Opens the folder of a bundle and checks every file that its manifest lists."""

import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

from ortolan.runtime import limits
from ortolan.runtime.arguments import checked_path
from ortolan.runtime.bundle import manifest_file
from ortolan.runtime.bundle.bundle import Bundle, Progress, check_file, checked_chunks, chunks
from ortolan.runtime.bundle.files import open_plain
from ortolan.runtime.bundle.graph_checks import check_graph
from ortolan.runtime.bundle.manifest import NAME, Manifest
from ortolan.runtime.bundle.parts import PartName
from ortolan.runtime.errors import BundleError, BundleFileError, BundleNotFoundError
from ortolan.runtime.graph.rules import read as read_graph

F = TypeVar("F", bound=Callable[..., Any])

StrPath = str | os.PathLike[str]

SIGNATURE = "model.sig"
"""Name of the file with the signature of a bundle; see `ortolan.signing`."""

_TRIES = 10


def retry_if_replaced(read: F) -> F:
    """Make a function that reads a bundle start over if the bundle was replaced meanwhile."""

    @functools.wraps(read)
    def call(path: StrPath, *args: Any, **kwargs: Any) -> Any:
        place = checked_path("path", path)
        for _ in range(_TRIES):
            before = _identity(place)
            try:
                return read(place, *args, **kwargs)
            except BundleError:
                if _identity(place) == before:
                    raise
        return read(place, *args, **kwargs)

    return cast("F", call)


@retry_if_replaced
def open_bundle(
    path: str | os.PathLike[str],
    *,
    full_check: bool = False,
    progress: Progress | None = None,
) -> Bundle:
    """Open a bundle and check its files.

    The hashes of the weights are only checked with `full_check`: on a small device that takes
    longer than loading them.

    Args:
        path: the folder. It may be a symbolic link; its files may not.
        full_check: also hash the weights.
        progress: called with the number of bytes read since the last call.

    Raises:
        BundleNotFoundError: there is no folder, or no manifest in it.
        ManifestError: the manifest is damaged or of another version.
        BundleFileError: a listed file is missing, resized, altered, or not a plain file.
        GraphError: a graph breaks a rule for bundles, or does not fit the manifest.
        InputError: not a path.
    """
    folder = _folder(path)
    manifest = manifest_file.decode(_read_manifest(folder))
    roles = {graph.file: role for role, graph in manifest.graphs.items()}
    graphs = {}
    # Only listed files are opened. Other files are harmless: an interrupted export leaves
    # temporary files and weights of the next version, and users keep notes.
    for file in manifest.files:
        if file.name in roles:
            data = b"".join(checked_chunks(folder, file, progress))
            summary = read_graph(data, file=file.name)
            check_graph(roles[file.name], summary, manifest, file=file.name)
            graphs[roles[file.name]] = summary
        else:
            is_read = full_check or file.name not in manifest.weights
            check_file(folder, file, is_read=is_read, progress=progress)
    return Bundle(path=folder, manifest=manifest, graphs=graphs)


def open_part(bundle: Bundle, name: PartName, *, full_check: bool = False) -> Bundle:
    """Open a bundle in a bundle; same errors as `open_bundle`."""
    folder, expected = bundle.manifest.parts[name]
    part = open_bundle(bundle.path / folder, full_check=full_check)
    got = manifest_file.fingerprint(part.manifest)
    features = bundle.manifest.features
    tiles = " in tiles" if features is not None and features.tiles is not None else ""
    words = _PARTS[name].format(media=f"{bundle.manifest.media}{tiles}")
    if got != expected:
        raise BundleFileError(
            f"{part.path}: expected the {words} with the fingerprint {expected}, got {got}. "
            "Export the checkpoint again."
        )
    if not _fits(bundle.manifest, name, part.manifest):
        raise BundleFileError(
            f"{part.path}: expected an {words} that suits the bundle around it, got one of "
            f"{part.manifest.takes} to {part.manifest.gives}. Export the checkpoint again."
        )
    return part


_PARTS: dict[PartName, str] = {
    "media": "encoder of {media}",
    "head": "head",
    "texts": "encoder of texts",
}


def _fits(manifest: Manifest, name: PartName, part: Manifest) -> bool:
    """Whether a part reads what the manifest says, as wide as it says."""
    source, features = part.source, manifest.features
    if name == "media" and features is not None:
        return source is not None and source.medium == manifest.media and source.fits(features)
    if name == "texts":
        is_text = source is not None and source.medium == "texts"
        return is_text and part.output == manifest.output
    return True


def open_parts(bundle: Bundle, *, full_check: bool = False) -> dict[str, Bundle]:
    """Open the bundles in a bundle; same errors as `open_bundle`."""
    return {name: open_part(bundle, name, full_check=full_check) for name in bundle.manifest.parts}


def files_of(bundles: Iterable[Bundle]) -> set[Path]:
    """All files of bundles: their manifests, and what these list."""
    return {
        bundle.path / name
        for bundle in bundles
        for name in (NAME, *(file.name for file in bundle.manifest.files))
    }


def _identity(path: Path) -> tuple[int, ...] | None:
    """Tells apart two bundles at the same path; `None` if there is none."""
    try:
        folder, manifest = os.stat(path), os.stat(os.path.join(path, NAME))
    except OSError:
        return None
    return folder.st_dev, folder.st_ino, manifest.st_ino, manifest.st_mtime_ns


def _folder(path: StrPath) -> Path:
    folder = Path(path).absolute()
    if os.fsencode(folder) != str(folder).encode(errors="replace"):
        raise BundleNotFoundError(
            f"{str(path)!r} is not a UTF-8 path, which onnxruntime needs. Rename the folder."
        )
    try:
        is_folder = folder.is_dir()
        exists = is_folder or folder.exists()
    except OSError as error:
        raise BundleNotFoundError(
            f"{path} cannot be opened: {error.strerror}. Check the path."
        ) from error
    if not exists:
        raise BundleNotFoundError(
            f"There is no folder {path}. Check the path, or make a bundle with `ortolan export`."
        )
    if not is_folder:
        raise BundleNotFoundError(f"{path} is a file. {_instead(folder)}")
    return folder


def _instead(path: Path) -> str:
    """Advice for a path that is not a bundle."""
    if (path / "genai_config.json").is_file():
        return (
            "It is a folder of onnxruntime-genai: export the checkpoint that it was built from, "
            "with `ortolan export CHECKPOINT BUNDLE`."
        )
    if path.match("*.gguf") or (path / "config.json").is_file():
        return f"It is a checkpoint: make a bundle of it with `ortolan export {path} BUNDLE`."
    if path.is_file():
        return f"Pass the folder that holds {NAME}."
    return "Check the path; an interrupted export leaves such a folder."


def _read_manifest(folder: Path) -> bytes:
    try:
        with open_plain(folder, NAME) as stream:
            # one byte more than allowed, for the decoder to notice
            return b"".join(chunks(stream, NAME, limits.MAX_MANIFEST_BYTES + 1))
    except FileNotFoundError as error:
        raise BundleNotFoundError(
            f"{folder} has no {NAME}, so it is not a bundle. {_instead(folder)}"
        ) from error
