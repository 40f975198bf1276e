"""Packed weights: weights as the kernels of this processor lay them out, in a separate folder.

onnxruntime rearranges ("packs") the weights of products into its own memory when it loads a graph.
A packed folder keeps the result in a file, which onnxruntime maps instead; all processes share the
pages. The files of the bundle itself do not change.

    bundle/
      manifest.json, ...
      packed-<16 hex digits>/     one per onnxruntime version and processor
        packed.json               contents, and what they were made for
        packed.seal               proves that this user wrote packed.json on this machine
        packed.bin                packed weights, each at a multiple of ALIGNMENT

onnxruntime still packs every weight, and uses the packed one if the hashes agree, so an outdated
folder cannot change a value. But it does not check the length of a packed weight, and a kernel
would read past the end of a short one. Hence the seal: a folder is used only complete and where it
was made (`ortolan.runtime.bundle.seal`). Any other is ignored, and the logger `ortolan.runtime`
warns with the reason. `ortolan.runtime.pack.write` writes these folders.
"""

import hashlib
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from ortolan.runtime import limits
from ortolan.runtime.bundle import seal
from ortolan.runtime.bundle.bundle import Bundle, check_file
from ortolan.runtime.bundle.files import open_plain
from ortolan.runtime.bundle.manifest import File
from ortolan.runtime.bundle.manifest_file import fingerprint
from ortolan.runtime.errors import BundleError, BundleFileError
from ortolan.runtime.graph.schema import parse_model
from ortolan.runtime.machine.processor import processor_features

NAME = "packed.json"
SEAL = "packed.seal"
BLOB = "packed.bin"
SCHEMA: Final = 1

ALIGNMENT = 1 << 16
"""Alignment of packed weights, in bytes: Windows maps files at multiples of 64 KiB."""

_PREFIX = "packed-"
_FOLDER = re.compile(_PREFIX + "[0-9a-f]{16}")

_log = logging.getLogger("ortolan.runtime")


class PackedGraph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The packed weights of one graph.

    Attributes:
        carrier: the weight whose ONNX entry lists all packed weights. onnxruntime looks for them in
            the file of that weight, so a small one is chosen and copied to packed.bin.
        entries: its entry: `offset` and `length` of the copy, and each packed weight as onnxruntime
            writes it, `key|offset;length;checksum|...`. It does not use the checksum.
    """

    file: str
    carrier: str
    entries: dict[str, str]

    @property
    def keys(self) -> set[str]:
        """Onnxruntime's keys of the packed weights: an operator and a hash of the contents."""
        return {value.partition("|")[0] for name, value in self.entries.items() if "_" in name}


class PackedManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of packed.json.

    Attributes:
        onnxruntime: version that packed the weights.
        processor: result of `processor_features`.
        bundle: `fingerprint` of the bundle's manifest.
    """

    schema: Literal[1]
    ortolan: str
    onnxruntime: str
    processor: tuple[str, ...]
    bundle: str
    blob: File
    graphs: tuple[PackedGraph, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A packed folder, by its name in the bundle, that fits its bundle and this machine."""

    folder: str
    manifest: PackedManifest

    def attach(self, file: str, graph: bytes) -> bytes:
        """Return a graph with references to its packed weights.

        For onnxruntime only: graphs in bundles may not contain such references.
        """
        packed = next((packed for packed in self.manifest.graphs if packed.file == file), None)
        if packed is None:
            return graph
        model = parse_model(graph)
        entries = {"location": f"{self.folder}/{BLOB}", **packed.entries}
        for tensor in model.graph.initializer:
            if tensor.name == packed.carrier.encode():
                del tensor.external_data[:]
                for key, value in entries.items():
                    tensor.external_data.add(key=key.encode(), value=value.encode())
        data: bytes = model.SerializeToString()
        return data


def folder_name(onnxruntime: str) -> str:
    """Name of the packed folder for this processor and a version of onnxruntime."""
    parts = (f"{SCHEMA}", onnxruntime, *processor_features())
    return _PREFIX + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def encode(manifest: PackedManifest) -> bytes:
    """Serialize a packed manifest; these bytes are sealed."""
    return msgspec.json.format(msgspec.json.encode(manifest, order="deterministic")) + b"\n"


class UnusableError(Exception):
    """A packed folder is damaged, or not for this bundle or this machine."""

    def __init__(self, expected: str, got: str) -> None:
        super().__init__(
            f"expected {expected}, got {got}. The model runs without packed weights. "
            "Run `ortolan pack` again, or delete the folder."
        )


def open_packed(
    bundle: Bundle, folder: str, *, onnxruntime: str, full_check: bool = False
) -> Packed:
    """Open a packed folder and check it. Nothing is parsed before the seal is verified."""
    path = bundle.path / folder
    packed = _read_manifest(path)
    for what, expected, got in (
        ("onnxruntime", onnxruntime, packed.onnxruntime),
        ("a processor with", " ".join(processor_features()), " ".join(packed.processor)),
        ("the bundle", fingerprint(bundle.manifest)[:16], packed.bundle[:16]),
    ):
        if expected != got:
            raise UnusableError(f"packed weights for {what} {expected}", f"those for {got}")
    try:
        check_file(path, packed.blob, is_read=full_check)
    except BundleError as error:
        if full_check:
            # the caller asked for the check, so a warning is not enough
            raise BundleFileError(
                f"{folder}: {BLOB} was altered. Run `ortolan pack` again, or delete the folder."
            ) from error
        # without its advice, which is about a bundle
        raise UnusableError(f"{BLOB} as it was written", str(error).partition(". ")[0]) from error
    return Packed(folder=folder, manifest=packed)


def find_packed(bundle: Bundle, *, onnxruntime: str, full_check: bool = False) -> Packed | None:
    """Find the packed weights of a bundle for this machine."""
    matching = folder_name(onnxruntime)
    folders = sorted(_folders(bundle.path), key=lambda name: (name != matching, name))
    refusals = []
    for folder in folders:
        try:
            return open_packed(bundle, folder, onnxruntime=onnxruntime, full_check=full_check)
        except UnusableError as error:
            refusals.append(f"{folder}: {error}")
    if refusals:
        _log.warning("%s", refusals[0])
    return None


def _folders(bundle: Path) -> list[str]:
    with os.scandir(bundle) as entries:
        return [
            entry.name
            for entry in entries
            if _FOLDER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        ]


def _read_manifest(path: Path) -> PackedManifest:
    data = _read(path, NAME)
    if not seal.check_seal(data, _read(path, SEAL)):
        raise UnusableError(
            "packed weights that this user made on this machine", f"a {NAME} with another seal"
        )
    try:
        return msgspec.json.decode(data, type=PackedManifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnusableError(f"a {NAME} of schema {SCHEMA}", str(error)[:300]) from error


def _read(path: Path, name: str) -> bytes:
    try:
        with open_plain(path, name) as stream:
            return stream.read(limits.MAX_WHOLE_FILE_BYTES)
    except (OSError, BundleError) as error:
        raise UnusableError(f"{name} as it was written", str(error)) from error
