"""Writes packed weights (`ortolan.runtime.bundle.packed`).

    for each graph: onnxruntime saves it with all weights and packed copies, twice the size
                    copy each distinct packed weight to packed.bin, delete the rest
    finally:        compare outputs with and without, move .packing.new into place

The files of the bundle are never written (`ortolan.staging`).
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
from ortolan.runtime.bundle.packed import BLOB, Packed, PackedGraph, PackedManifest
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.ort_session import save_packed
from ortolan.runtime.engine.providers import onnxruntime_version
from ortolan.runtime.engine.sample_outputs import sample_outputs
from ortolan.runtime.errors import BundleError, GraphError
from ortolan.runtime.graph.schema import RefusedError, parse_model, text
from ortolan.runtime.machine.processor import processor_features
from ortolan.staging import Place, staged

_SAVED = "saved.bin"

_SPACE = "Free some disk space: packing needs up to four times the weights."


class PackReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of packing.

    Attributes:
        bytes: size on disk, without the holes between weights.
        share: `bytes` relative to the size of the bundle's weights.
        load_before_s: seconds to load the model without packed weights.
        load_after_s: seconds to load it with them.
    """

    folder: str
    bytes: int
    weights: int
    share: float
    load_before_s: float
    load_after_s: float


def pack(bundle: Bundle) -> PackReport:
    """Pack the weights of a bundle for this processor and this onnxruntime.

    Replaces an earlier result. Outputs with and without packed weights must be bit-identical.
    """
    folder = bundle.path / packed.folder_name(onnxruntime_version())
    try:
        with staged(Place(folder, index=packed.NAME, name="packing")) as staging:
            _write(bundle, staging)
            result = packed.open_packed(bundle, staging.name, onnxruntime=onnxruntime_version())
            before, after = _compare(bundle, result)
            size = _bytes_on_disk(staging)
    except packed.UnusableError as error:
        raise BundleError(f"{bundle.path}: {error}") from error
    except OSError as error:
        raise BundleError(
            f"{bundle.path}: packed weights cannot be written: "
            f"{files.described(error, full=_SPACE)}"
        ) from error
    sizes = [file.size for file in bundle.manifest.files if file.name in bundle.manifest.weights]
    return PackReport(
        folder=str(folder),
        bytes=size,
        weights=len(set().union(*(graph.keys for graph in result.manifest.graphs))),
        share=size / sum(sizes),
        load_before_s=before,
        load_after_s=after,
    )


class _Blob:
    """packed.bin while it is written: aligned spans, and the hash of everything so far."""

    def __init__(self, stream: files.NewFile) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self._size = 0
        self._weights: dict[tuple[str, str], str] = {}

    def add(self, entry: str, source: BinaryIO) -> str:
        """Copy a packed weight, unless an earlier graph had the same, and return its new entry.

        An entry is `key|offset;length;checksum|...`.
        """
        key, *blobs = entry.split("|")
        spans = []
        digest = hashlib.sha256()
        for blob in blobs:
            offset, length, _ = blob.split(";")
            spans.append((int(offset), int(length)))
            for chunk in _chunks(source, *spans[-1]):
                digest.update(chunk)
        identity = (key, digest.hexdigest())
        if identity not in self._weights:
            places = (f"{self.append(source, *span)};{span[1]};0" for span in spans)
            self._weights[identity] = "|".join((key, *places))
        return self._weights[identity]

    def append(self, source: BinaryIO, offset: int, length: int) -> int:
        """Copy a range of a file, and return where it starts."""
        gap = -self._size % packed.ALIGNMENT
        self._digest.update(bytes(gap))
        # a hole, which takes no disk space
        self._stream.seek(gap, os.SEEK_CUR)
        for chunk in _chunks(source, offset, length):
            self._digest.update(chunk)
            self._stream.write(chunk)
        start = self._size + gap
        self._size = start + length
        return start

    def describe(self) -> File:
        """Size and hash so far."""
        return File(name=BLOB, size=self._size, sha256=self._digest.hexdigest())


def _write(bundle: Bundle, staging: Path) -> None:
    """Write packed.bin and packed.json."""
    with files.create(staging / BLOB) as stream:
        blob = _Blob(stream)
        graphs = []
        for role, graph in bundle.manifest.graphs.items():
            if role == MAPS_ROLE:  # rarely used: not worth the disk space
                continue
            saved = _save(bundle, graph, staging)
            weights, lengths = _copy_packed(graph.file, saved, blob)
            carrier, place = _copy_carrier(bundle, role, lengths, blob)
            entries = {f"prepacked_{number}": entry for number, entry in enumerate(weights)}
            graphs.append(PackedGraph(file=graph.file, carrier=carrier, entries=place | entries))
            # now, not at the end: it is twice as large as the weights
            files.remove(staging / _SAVED)
            files.remove(saved)
    if not any(graph.keys for graph in graphs):
        raise BundleError(
            f"{bundle.path}: onnxruntime {onnxruntime_version()} packs none of these weights. "
            "Use the bundle as it is."
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
            f"{bundle.path}: onnxruntime cannot write the packed weights of {graph.file} "
            f"({free} bytes of disk space free): {str(error.__cause__)[:300]}. {_SPACE}"
        ) from error


def _copy_packed(file: str, saved: Path, blob: _Blob) -> tuple[list[str], dict[str, int]]:
    """Copy the packed weights of one graph; return their entries, and the lengths of weights."""
    weights: dict[str, str] = {}
    lengths: dict[str, int] = {}
    try:
        model = parse_model(saved.read_bytes())
        with (saved.parent / _SAVED).open("rb") as source:
            for tensor in model.graph.initializer:
                entries = [(text(item.key), text(item.value)) for item in tensor.external_data]
                lengths[text(tensor.name)] = int(dict(entries).get("length", "0"))
                for key, value in entries:
                    if key.startswith("prepacked"):
                        weights[value.partition("|")[0]] = blob.add(value, source)
    except (RefusedError, ValueError, EOFError) as error:
        raise GraphError(
            f"{file}: the packed weights that onnxruntime {onnxruntime_version()} wrote cannot be "
            f"read: {error}. Use the bundle without packed weights."
        ) from error
    return [*weights.values()], lengths


def _copy_carrier(
    bundle: Bundle, role: str, lengths: dict[str, int], blob: _Blob
) -> tuple[str, dict[str, str]]:
    """Copy the smallest weight that onnxruntime's optimizer neither replaces nor removes.

    Otherwise onnxruntime would not see the packed weights that it lists.
    """
    file = bundle.manifest.graphs[role].file
    own = {tensor.name for tensor in parse_model(bundle.read(file)).graph.initializer}
    tensors = [
        tensor
        for tensor in bundle.graphs[role].external
        if tensor.name.encode() in own and lengths.get(tensor.name) == tensor.length > 0
    ]
    if not tensors:
        raise GraphError(
            f"{file}: onnxruntime replaces every weight, so none can refer to packed weights. "
            "Use the bundle without packed weights."
        )
    smallest = min(tensors, key=lambda tensor: tensor.length)
    with open_plain(bundle.path, smallest.file) as source:
        start = blob.append(source, smallest.offset, smallest.length)
    return smallest.name, {"offset": f"{start}", "length": f"{smallest.length}"}


def _chunks(source: BinaryIO, offset: int, length: int) -> Iterator[bytes]:
    source.seek(offset)
    while length > 0:
        chunk = source.read(min(length, limits.HASH_CHUNK_BYTES))
        if not chunk:
            raise EOFError(f"{length} bytes are missing")
        length -= len(chunk)
        yield chunk


def _bytes_on_disk(folder: Path) -> int:
    """Size of the files in a folder on disk, without holes if the system tells."""
    status = [path.stat() for path in folder.iterdir()]
    return sum(
        512 * file.st_blocks if hasattr(file, "st_blocks") else file.st_size for file in status
    )


def _compare(bundle: Bundle, result: Packed) -> tuple[float, float]:
    """Compare the outputs without and with packed weights; return the seconds to load each."""
    # with packed weights first: the other engine collapses huge pages in the background
    try:
        after, got = _load_and_run(bundle, result)
    except GraphError as error:
        raise BundleError(
            f"{bundle.path}: onnxruntime {onnxruntime_version()} rejects the packed weights. "
            "Use the bundle without them, and report this bug."
        ) from error
    before, expected = _load_and_run(bundle, None)
    if not all(np.array_equal(*pair, equal_nan=True) for pair in zip(got, expected, strict=True)):
        raise BundleError(
            f"{bundle.path}: the outputs with packed weights differ. "
            "Use the bundle without them, and report this bug."
        )
    return before, after


def _load_and_run(bundle: Bundle, packed_weights: Packed | None) -> tuple[float, list[Any]]:
    started = time.perf_counter()
    engine = Engine(bundle, packed=packed_weights)
    seconds = time.perf_counter() - started
    return seconds, sample_outputs(engine)
