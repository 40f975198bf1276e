"""An adapter: low-rank updates of a bundle's weights, in a folder of its own.

    adapter/
      adapter.json        the bundle that it belongs to, and its updates
      adapter.bin         float32 factors of all updates, one after the other
      certificate.json    PyTorch's outputs with the adapter merged into the weights
      certificate.bin

The update of a weight `(outputs, inputs)` is stored as two factors: first `(inputs, rank)`, then
`(rank, outputs)`, which includes the scale. The runtime adds `x @ first @ second` to the output of
every product by that weight. `ortolan adapter` writes the folder.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ortolan.runtime import limits
from ortolan.runtime.bundle.bundle import checked_chunks, chunks
from ortolan.runtime.bundle.field_types import Label, Sha256
from ortolan.runtime.bundle.files import open_plain
from ortolan.runtime.bundle.manifest import File, Manifest
from ortolan.runtime.bundle.manifest_file import fingerprint
from ortolan.runtime.bundle.quality import Quality
from ortolan.runtime.bundle.witness import Witness
from ortolan.runtime.errors import AdapterError, BundleFileError

NAME = "adapter.json"
BLOB = "adapter.bin"
SCHEMA: Final = 1

_NUMBER = np.dtype("<f4")

Size = Annotated[int, Meta(ge=1, le=limits.MAX_DIMENSION)]


class Factors(NamedTuple):
    """A low-rank update of a weight `(N, K)`.

    Attributes:
        first: float32 `(K, W)`.
        second: float32 `(W, N)`, which includes the scale.
    """

    first: NDArray[np.float32]
    second: NDArray[np.float32]


class Update(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The update of one weight `(outputs, inputs)`; its factors follow those of the update before.

    Attributes:
        rank: columns of the first factor. A weight that holds several matrices has the rank of all
            their updates together.
    """

    weight: Label
    inputs: Size
    outputs: Size
    rank: Annotated[int, Meta(ge=1, le=4 * limits.MAX_ADAPTER_RANK)]

    @property
    def size(self) -> int:
        """Bytes of both factors."""
        return _NUMBER.itemsize * self.rank * (self.inputs + self.outputs)


class AdapterManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of adapter.json.

    Attributes:
        bundle: `fingerprint` of the bundle's manifest.
        source_sha256: hash of the PEFT adapter and the checkpoint that it was trained on.
        modules: names of the adapted matrices in the checkpoint, with `{}` for the layer, sorted.
        ranks: distinct ranks of their updates, ascending.
        updates: the updates, in the order of adapter.bin.
        quality: distance of the adapted bundle from the adapted model.
        witness: what PEFT computes; `None` in adapters of older versions.
    """

    schema: Literal[1]
    bundle: Sha256
    source_sha256: Sha256
    modules: Annotated[tuple[Label, ...], Meta(max_length=limits.MAX_QUANTIZED)]
    ranks: Annotated[tuple[int, ...], Meta(min_length=1, max_length=limits.MAX_ADAPTER_RANK)]
    updates: Annotated[tuple[Update, ...], Meta(min_length=1, max_length=limits.MAX_QUANTIZED)]
    files: Annotated[tuple[File, ...], Meta(min_length=1, max_length=limits.MAX_FILES)]
    quality: Quality | None = None
    witness: Witness | None = None


class _Version(msgspec.Struct):
    """The only field that every schema has."""

    schema: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """An opened adapter.

    Attributes:
        path: absolute path of the folder.
        identity: hash of adapter.json, which covers all files by their hashes.
    """

    path: Path
    manifest: AdapterManifest
    identity: str

    def factors(self) -> dict[str, Factors]:
        """Read the factors of every update, by name of weight."""
        data, place = self.read(BLOB), 0
        factors = {}
        for update in self.manifest.updates:
            count = update.rank * (update.inputs + update.outputs)
            numbers = np.frombuffer(data, _NUMBER, count, place).astype(np.float32, copy=False)
            if not np.isfinite(numbers).all():
                raise AdapterError(
                    f"{self.path}: the update of {update.weight} has numbers that are not finite. "
                    "The training of this adapter diverged: use an earlier checkpoint of it."
                )
            first, second = np.split(numbers, [update.rank * update.inputs])
            factors[update.weight] = Factors(
                first.reshape(update.inputs, update.rank),
                second.reshape(update.rank, update.outputs),
            )
            place += update.size
        return factors

    def read(self, name: str) -> bytes:
        """Read a whole file and check its hash."""
        for file in self.manifest.files:
            if file.name == name:
                try:
                    return b"".join(checked_chunks(self.path, file))
                except BundleFileError as error:
                    raise _damaged(self.path, str(error).partition(". ")[0]) from error
        raise _damaged(self.path, f"{NAME} lists no file {name}")

    def check_bundle(self, manifest: Manifest) -> None:
        """Check that the adapter was made for a bundle."""
        if fingerprint(manifest) != self.manifest.bundle:
            raise AdapterError(
                f"{self.path}: this adapter was made for another bundle. Make it again with "
                "`ortolan adapter --bundle` for this one."
            )


def open_adapter(path: Path) -> Adapter:
    """Open an adapter and check that its files fit its description."""
    try:
        with open_plain(path, NAME) as stream:
            data = b"".join(chunks(stream, NAME, limits.MAX_MANIFEST_BYTES + 1))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise AdapterError(
            f"{path}: not an adapter; it has no {NAME}. Make one with `ortolan adapter`."
        ) from error
    except (BundleFileError, OSError) as error:
        raise AdapterError(f"{path}: {NAME} cannot be read: {error}") from error
    manifest = _decode(path, data)
    size = sum(update.size for update in manifest.updates)
    blob = next((file for file in manifest.files if file.name == BLOB), None)
    if blob is None or blob.size != size:
        got = "none" if blob is None else f"{blob.size}"
        raise _damaged(path, f"expected {size} bytes in {BLOB}, got {got}")
    names = [update.weight for update in manifest.updates]
    if len(set(names)) < len(names):
        raise _damaged(path, f"{NAME} has two updates of one weight")
    if size > limits.MAX_ADAPTER_BYTES:
        raise AdapterError(
            f"{path}: an adapter may have at most {limits.MAX_ADAPTER_BYTES} bytes of factors "
            f"(got {size}). Export the checkpoint with the adapter merged: --adapter."
        )
    return Adapter(path=path, manifest=manifest, identity=hashlib.sha256(data).hexdigest())


def encode(manifest: AdapterManifest) -> bytes:
    """Write an adapter's manifest as indented JSON; equal manifests have equal bytes."""
    return msgspec.json.format(msgspec.json.encode(manifest, order="deterministic")) + b"\n"


def write_factors(factors: Mapping[str, Factors]) -> tuple[tuple[Update, ...], bytes]:
    """Return the list of updates and the contents of adapter.bin."""
    updates = tuple(
        Update(weight=weight, inputs=len(first), outputs=second.shape[1], rank=first.shape[1])
        for weight, (first, second) in factors.items()
    )
    parts = (part.astype(_NUMBER).tobytes() for pair in factors.values() for part in pair)
    return updates, b"".join(parts)


def _decode(path: Path, data: bytes) -> AdapterManifest:
    if len(data) > limits.MAX_MANIFEST_BYTES:
        raise _damaged(path, f"{NAME} has more than {limits.MAX_MANIFEST_BYTES} bytes")
    try:
        schema = msgspec.json.decode(data, type=_Version).schema
        if schema != SCHEMA:
            raise AdapterError(
                f"{path}: expected an adapter of schema {SCHEMA}, got {schema}. Make it again with "
                "`ortolan adapter`, or install the version of Ortolan that made it."
            )
        return msgspec.json.decode(data, type=AdapterManifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, f"{NAME} is invalid: {str(error)[:300]}") from error


def _damaged(path: Path, problem: str) -> AdapterError:
    return AdapterError(
        f"{path}: {problem}. The adapter is damaged: copy it again, or make it again with "
        "`ortolan adapter`."
    )
