"""Writes packed weights beside a bundle's own (`ortolan.runtime.bundle.packed`).

onnxruntime can write a graph with all its weights and all packed ones, in one file of twice the
size. From that the packed ones are copied, each of them once; the rest is deleted.

The folder is built as `.packing.new` in the bundle, compared with the bundle without it, and
renamed when every byte is on the disk (`ortolan.staging`). Files of the bundle are
read and never written.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from ortolan import __version__, files
from ortolan.runtime import limits
from ortolan.runtime.bundle import packed, seal
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.files import open_plain
from ortolan.runtime.bundle.kinds import MAPS_ROLE
from ortolan.runtime.bundle.manifest import File, Graph
from ortolan.runtime.bundle.manifest_file import fingerprint
from ortolan.runtime.bundle.packed import (
    BLOB,
    Carrier,
    Packed,
    PackedGraph,
    PackedManifest,
    PackedWeight,
    Span,
)
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.ort_session import onnxruntime_version, save_packed
from ortolan.runtime.engine.sample_outputs import sample_outputs
from ortolan.runtime.errors import BundleError, GraphError
from ortolan.runtime.graph.schema import RefusedError, parse_model, text
from ortolan.runtime.machine.processor import processor_features
from ortolan.staging import BusyError, Place, staged

__all__ = ["PackReport", "pack"]

_SAVED = "saved.bin"

_ROOM = (
    "Check the permissions, and the free space on the disk: packing takes up to four times the "
    "weights."
)


class PackReport(msgspec.Struct, frozen=True, kw_only=True):
    """What packing made.

    Attributes:
        folder: its path.
        bytes: on disk, without the holes between weights.
        weights: packed weights; one that several graphs share counts once.
        share: `bytes` over the size of the bundle's weights.
        load_before_s: opening the sessions without packed weights.
        load_after_s: opening them with these.
    """

    folder: str
    bytes: int
    weights: int
    share: float
    load_before_s: float
    load_after_s: float


def pack(bundle: Bundle) -> PackReport:
    """Pack the weights of a bundle for this processor and this onnxruntime.

    An earlier result for both is replaced. Logits have to be equal to those without packed weights,
    bit for bit.

    Raises:
        BundleError: there is nothing to pack, no room, no right to write, another packing runs,
            or the logits are not equal.
        GraphError: onnxruntime cannot load a graph.
    """
    folder = bundle.path / packed.folder_name(onnxruntime_version())
    try:
        with staged(Place(folder, index=packed.NAME, name="packing")) as staging:
            _write(bundle, staging)
            made = packed.open_packed(bundle, staging.name, onnxruntime=onnxruntime_version())
            before, after = _compare(bundle, made)
            size = _bytes_on_disk(staging)
    except BusyError as error:
        raise BundleError(
            f"{bundle.path}: expected no other packing of it, got one that is running. Wait for it."
        ) from error
    except packed.UnusableError as error:
        raise BundleError(f"{bundle.path}: {error}") from error
    except OSError as error:
        raise BundleError(
            f"{bundle.path}: expected to write packed weights there, got: {error}. {_ROOM}"
        ) from error
    sizes = [file.size for file in bundle.manifest.files if file.name in bundle.manifest.weights]
    return PackReport(
        folder=str(folder),
        bytes=size,
        weights=len({weight.key for graph in made.manifest.graphs for weight in graph.weights}),
        share=size / sum(sizes),
        load_before_s=before,
        load_after_s=after,
    )


class _Blob:
    """packed.bin while it is written: spans at aligned offsets, and the hash of all of it."""

    def __init__(self, stream: files.NewFile) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self._size = 0
        self._known: dict[tuple[str, str], tuple[Span, ...]] = {}

    def add(self, key: str, source: BinaryIO, spans: list[tuple[int, int]]) -> PackedWeight:
        """Copy a packed weight, unless another graph had the same."""
        digest = hashlib.sha256()
        for offset, length in spans:
            for chunk in _chunks(source, offset, length):
                digest.update(chunk)
        same = (key, digest.hexdigest())
        if same not in self._known:
            self._known[same] = tuple(self.append(source, *span) for span in spans)
        return PackedWeight(key=key, spans=self._known[same])

    def append(self, source: BinaryIO, offset: int, length: int) -> Span:
        """Copy a part of a file."""
        gap = -self._size % packed.ALIGNMENT
        self._digest.update(bytes(gap))
        # a hole, which takes no room
        self._stream.seek(gap, os.SEEK_CUR)
        span = Span(offset=self._size + gap, length=length)
        for chunk in _chunks(source, offset, length):
            self._digest.update(chunk)
            self._stream.write(chunk)
        self._size = span.offset + length
        return span

    def describe(self) -> File:
        """Size and hash so far."""
        return File(name=BLOB, size=self._size, sha256=self._digest.hexdigest())


def _write(bundle: Bundle, staging: Path) -> None:
    """Write packed.bin and packed.json."""
    with files.create(staging / BLOB) as stream:
        blob = _Blob(stream)
        graphs = []
        for role, graph in bundle.manifest.graphs.items():
            if role == MAPS_ROLE:  # drawn from now and then: not worth the disk
                continue
            saved = _save(bundle, graph, staging)
            weights, kept = _copy_packed(graph.file, saved, blob)
            carrier = _copy_carrier(bundle, role, kept, blob)
            graphs.append(PackedGraph(file=graph.file, carrier=carrier, weights=weights))
            # at once: it is twice as large as the weights
            files.remove(staging / _SAVED)
            files.remove(saved)
    if not any(graph.weights for graph in graphs):
        raise BundleError(
            f"{bundle.path}: expected weights that onnxruntime {onnxruntime_version()} packs, got "
            "none. The bundle is fine as it is."
        )
    manifest = PackedManifest(
        schema=packed.SCHEMA,
        ortolan=__version__,
        onnxruntime=onnxruntime_version(),
        processor=processor_features(),
        bundle=fingerprint(bundle.manifest),
        blob=blob.describe(),
        graphs=tuple(graphs),
    )
    data = packed.encode(manifest)
    files.write(staging / packed.NAME, data)
    files.write(staging / packed.SEAL, seal.make_seal(data))


def _save(bundle: Bundle, graph: Graph, staging: Path) -> Path:
    try:
        return save_packed(bundle, graph, staging, weights=_SAVED)
    except GraphError as error:
        free = shutil.disk_usage(staging).free
        raise BundleError(
            f"{bundle.path}: expected onnxruntime to write the packed weights of {graph.file}, "
            f"with {free} bytes free on the disk, got: {str(error.__cause__)[:300]}. {_ROOM}"
        ) from error


def _copy_packed(
    file: str, saved: Path, blob: _Blob
) -> tuple[tuple[PackedWeight, ...], dict[str, int]]:
    """Copy what is packed of one graph.

    Args:
        file: name of the graph, for the text of an error.
        saved: the graph as onnxruntime saved it.
        blob: where to.

    Returns:
        The packed weights, and the length of each weight that the saved graph has.
    """
    weights: dict[str, PackedWeight] = {}
    kept: dict[str, int] = {}
    try:
        model = parse_model(saved.read_bytes())
        with (saved.parent / _SAVED).open("rb") as source:
            for tensor in model.graph.initializer:
                entries = [(text(item.key), text(item.value)) for item in tensor.external_data]
                kept[text(tensor.name)] = int(dict(entries).get("length", "0"))
                for key, value in entries:
                    if key.startswith("prepacked"):
                        name, spans = _parse_entry(value)
                        weights[name] = blob.add(name, source, spans)
    except (RefusedError, ValueError, EOFError) as error:
        raise GraphError(
            f"{file}: expected a graph and packed weights as onnxruntime {onnxruntime_version()} "
            f"writes them, got: {error}. Use the bundle without packed weights."
        ) from error
    return tuple(weights.values()), kept


def _parse_entry(value: str) -> tuple[str, list[tuple[int, int]]]:
    """Split `key|offset;length;checksum|...`."""
    name, *blobs = value.split("|")
    spans = []
    for item in blobs:
        offset, length, _ = item.split(";")
        spans.append((int(offset), int(length)))
    return name, spans


def _copy_carrier(bundle: Bundle, role: str, kept: dict[str, int], blob: _Blob) -> Carrier:
    """Copy the smallest weight that the optimizer leaves as it is.

    From one that it replaces or removes, onnxruntime would not learn of the packed weights.
    """
    file = bundle.manifest.graphs[role].file
    own = {tensor.name for tensor in parse_model(bundle.read(file)).graph.initializer}
    tensors = [
        tensor
        for tensor in bundle.graphs[role].external
        if tensor.name.encode() in own and kept.get(tensor.name) == tensor.length > 0
    ]
    if not tensors:
        raise GraphError(
            f"{file}: expected a weight that onnxruntime leaves as it is, got none. Use the "
            "bundle without packed weights."
        )
    smallest = min(tensors, key=lambda tensor: tensor.length)
    with open_plain(bundle.path, smallest.file) as source:
        span = blob.append(source, smallest.offset, smallest.length)
    return Carrier(name=smallest.name, span=span)


def _chunks(source: BinaryIO, offset: int, length: int) -> Iterator[bytes]:
    source.seek(offset)
    while length > 0:
        chunk = source.read(min(length, limits.HASH_CHUNK_BYTES))
        if not chunk:
            raise EOFError(f"{length} bytes fewer than it says")
        length -= len(chunk)
        yield chunk


def _bytes_on_disk(folder: Path) -> int:
    """Bytes of the files of a folder, without holes where the system says so."""
    status = [path.stat() for path in folder.iterdir()]
    return sum(
        512 * file.st_blocks if hasattr(file, "st_blocks") else file.st_size for file in status
    )


def _compare(bundle: Bundle, made: Packed) -> tuple[float, float]:
    """Compare the outputs without and with packed weights; give the seconds to open each."""
    # first the new one: memory of the other goes into huge pages in the background
    after, got = _opened(bundle, made)
    before, expected = _opened(bundle, None)
    if not all(np.array_equal(*pair, equal_nan=True) for pair in zip(got, expected, strict=True)):
        raise BundleError(
            f"{bundle.path}: expected the same output with packed weights and without, got "
            "another. Use the bundle without, and report this."
        )
    return before, after


def _opened(bundle: Bundle, made: Packed | None) -> tuple[float, list[Any]]:
    started = time.perf_counter()
    engine = Engine(bundle, packed=made)
    seconds = time.perf_counter() - started
    return seconds, sample_outputs(engine)
