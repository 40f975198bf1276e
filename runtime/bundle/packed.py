"""Weights as the kernels of this processor keep them, in a file beside those of a bundle.

onnxruntime rearranges ("packs") the weights of products when it loads a graph, into memory of
its own. A packed folder keeps the result in a file: onnxruntime maps it and gives its own memory
back, and all processes share the pages. The bundle's files stay what they are.

    bundle/
      manifest.json, ...
      packed-<16 hex digits>/     one for each onnxruntime and processor
        packed.json               what it holds, and what it was made for
        packed.seal               shows that this user made packed.json on this machine
        packed.bin                packed weights, each at a multiple of ALIGNMENT

onnxruntime packs every weight all the same, and takes the packed one whose hash is equal: a
packed folder cannot give a weight another value by being out of date. It does not check how long
the packed one is, and a kernel would read past the end of a short one. Hence the seal: a packed
folder is used only where it was made (`ortolan.runtime.bundle.seal`), and whole. Any other is
ignored, and a warning of the logger `ortolan.runtime` says why. `ortolan.runtime.pack.write` makes
them.
"""

import hashlib
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ortolan.runtime import limits
from ortolan.runtime.bundle import seal
from ortolan.runtime.bundle.bundle import Bundle, check_file
from ortolan.runtime.bundle.files import open_plain
from ortolan.runtime.bundle.manifest import File, Label, Sha256
from ortolan.runtime.bundle.manifest_file import fingerprint
from ortolan.runtime.errors import BundleError, BundleFileError
from ortolan.runtime.graph.schema import parse_model
from ortolan.runtime.machine.processor import processor_features

__all__ = [
    "ALIGNMENT",
    "BLOB",
    "NAME",
    "SCHEMA",
    "SEAL",
    "Carrier",
    "Packed",
    "PackedGraph",
    "PackedManifest",
    "PackedWeight",
    "Span",
    "UnusableError",
    "encode",
    "find_packed",
    "folder_name",
    "open_packed",
]

NAME = "packed.json"
SEAL = "packed.seal"
BLOB = "packed.bin"
SCHEMA: Final = 1

ALIGNMENT = 1 << 16
"""Bytes. Windows maps files at multiples of 64 KiB, other systems at every page."""

_PREFIX = "packed-"
_FOLDER = re.compile(_PREFIX + "[0-9a-f]{16}")

_log = logging.getLogger("ortolan.runtime")

Size = Annotated[int, Meta(ge=0, le=limits.MAX_FILE_BYTES)]


class Span(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of packed.bin, in bytes."""

    offset: Annotated[int, Meta(ge=0, le=limits.MAX_FILE_BYTES, multiple_of=ALIGNMENT)]
    length: Size


class PackedWeight(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one kernel keeps of one weight.

    Attributes:
        key: by which onnxruntime finds it: the operator, and a hash of what is in `spans`.
        spans: one for each buffer of the kernel.
    """

    key: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_]{1,64}\+[0-9]{1,20}\Z")]
    spans: tuple[Span, ...]


class Carrier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The weight of a graph at which onnxruntime is told of all packed ones.

    It reads packed weights from the file that the weight itself is in, so a copy of this one, a
    small one, is in packed.bin.
    """

    name: Label
    span: Span


class PackedGraph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The packed weights of one graph."""

    file: str
    carrier: Carrier
    weights: Annotated[tuple[PackedWeight, ...], Meta(max_length=limits.MAX_INITIALIZERS)]


class PackedManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of packed.json.

    Attributes:
        processor: what `processor_features` said.
        bundle: `fingerprint` of the bundle's manifest.
        blob: packed.bin.
    """

    schema: Literal[1]
    ortolan: Label
    onnxruntime: Label
    processor: tuple[str, ...]
    bundle: Sha256
    blob: File
    graphs: Annotated[tuple[PackedGraph, ...], Meta(max_length=3)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A packed folder that fits the bundle it lies in, and this machine.

    Attributes:
        folder: its name in the bundle.
    """

    folder: str
    manifest: PackedManifest

    def attach(self, file: str, graph: bytes) -> bytes:
        """Tell a graph where its packed weights are.

        Returns:
            The same graph, for onnxruntime alone: bundles may not hold such a one.
        """
        for packed in self.manifest.graphs:
            if packed.file == file:
                return _attach(graph, packed, f"{self.folder}/{BLOB}")
        return graph


def folder_name(onnxruntime: str) -> str:
    """Name of the folder for this processor and a version of onnxruntime."""
    parts = (f"{SCHEMA}", onnxruntime, *processor_features())
    return _PREFIX + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def encode(manifest: PackedManifest) -> bytes:
    """Write a packed manifest: the bytes that are sealed."""
    return msgspec.json.format(msgspec.json.encode(manifest, order="deterministic")) + b"\n"


class UnusableError(Exception):
    """A packed folder is not for this bundle or not for this machine."""

    def __init__(self, expected: str, got: str) -> None:
        super().__init__(
            f"expected {expected}, got {got}. The model runs without packed weights: "
            "run `ortolan pack` again, or delete the folder."
        )


def open_packed(
    bundle: Bundle, folder: str, *, onnxruntime: str, full_check: bool = False
) -> Packed:
    """Open a packed folder and check all of it, the seal first: nothing is parsed before.

    Raises:
        UnusableError: it is not for this bundle or not for this machine, or damaged.
        BundleFileError: `full_check`, and packed weights are other than those written.
    """
    path = bundle.path / folder
    packed = _read_manifest(path)
    for what, expected, got in (
        ("onnxruntime", onnxruntime, packed.onnxruntime),
        ("a processor with", " ".join(processor_features()), " ".join(packed.processor)),
        ("the bundle", fingerprint(bundle.manifest)[:16], packed.bundle[:16]),
    ):
        if expected != got:
            raise UnusableError(f"packed weights for {what} {expected}", f"those for {got}")
    _check_spans(bundle, packed)
    try:
        check_file(path, packed.blob, is_read=full_check)
    except BundleError as error:
        if full_check:
            # without it nobody reads them before they are used: that is no time for a warning
            raise BundleFileError(
                f"{folder}: expected {BLOB} as it was written, got another. Run `ortolan pack` "
                "again, or delete the folder."
            ) from error
        # without the advice, which is about a bundle
        raise UnusableError(f"{BLOB} as it was written", str(error).partition(". ")[0]) from error
    return Packed(folder=folder, manifest=packed)


def find_packed(bundle: Bundle, *, onnxruntime: str, full_check: bool = False) -> Packed | None:
    """Find the packed weights of a bundle, for this machine.

    Args:
        bundle: whose weights they are.
        onnxruntime: the version that will load them.
        full_check: read all packed weights once more than needed and compare their hash.

    Returns:
        `None` where there are none. Where there are some, but none to use, a warning says why.

    Raises:
        BundleFileError: `full_check`, and packed weights are other than those written.
    """
    own = folder_name(onnxruntime)
    folders = sorted(_folders(bundle.path), key=lambda name: (name != own, name))
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


def _check_spans(bundle: Bundle, packed: PackedManifest) -> None:
    """The seal says that they were right when they were written; a mistake here would be fatal."""
    lengths = {
        (bundle.manifest.graphs[role].file, tensor.name): tensor.length
        for role, graph in bundle.graphs.items()
        for tensor in graph.external
    }
    for graph in packed.graphs:
        carrier = graph.carrier
        length = lengths.get((graph.file, carrier.name))
        if length != carrier.span.length:
            raise UnusableError(
                f"{carrier.span.length} bytes for {carrier.name!r} of {graph.file}", f"{length}"
            )
        for span in (carrier.span, *(span for weight in graph.weights for span in weight.spans)):
            if span.offset + span.length > packed.blob.size:
                raise UnusableError(
                    f"packed weights within the {packed.blob.size} bytes of {BLOB}",
                    f"bytes {span.offset} to {span.offset + span.length}",
                )


def _attach(graph: bytes, packed: PackedGraph, location: str) -> bytes:
    model = parse_model(graph)
    name = packed.carrier.name.encode()
    for tensor in model.graph.initializer:
        if tensor.name == name:
            span = packed.carrier.span
            entries = {
                "location": location,
                "offset": f"{span.offset}",
                "length": f"{span.length}",
            }
            entries |= {
                f"prepacked_{index}": _entry(weight) for index, weight in enumerate(packed.weights)
            }
            del tensor.external_data[:]
            for key, value in entries.items():
                tensor.external_data.add(key=key.encode(), value=value.encode())
    data: bytes = model.SerializeToString()
    return data


def _entry(weight: PackedWeight) -> str:
    """As onnxruntime writes it: key, then offset, length and a checksum of 0, which is unused."""
    return "|".join([weight.key, *(f"{span.offset};{span.length};0" for span in weight.spans)])
