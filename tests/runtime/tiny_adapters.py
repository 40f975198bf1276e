"""Random adapters of tiny bundles."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from tests.runtime import packed_bundles
from tests.runtime.chat.tiny_chat import TEMPLATE

from ortolan.runtime.bundle.adapter_folder import (
    BLOB,
    NAME,
    AdapterManifest,
    Factors,
    encode,
    write_factors,
)
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.manifest import File
from ortolan.runtime.bundle.manifest_file import fingerprint
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.graph.adapters import adaptable_weights
from ortolan.runtime.loading import load


def random_factors(
    bundle: Bundle, *, seed: int = 0, rank: int = 2, weights: Iterable[str] | None = None
) -> dict[str, Factors]:
    """Factors of updates about as large as the weights; of all weights by default."""
    random = np.random.default_rng(seed)
    shapes = adaptable_weights(bundle.read(next(iter(bundle.manifest.graphs.values())).file))
    return {
        name: Factors(
            random.standard_normal((inputs, rank)).astype(np.float32) / inputs**0.5,
            random.standard_normal((rank, outputs)).astype(np.float32) / rank**0.5,
        )
        for name, (outputs, inputs) in shapes.items()
        if weights is None or name in weights
    }


def write_adapter(
    folder: Path, bundle: Bundle, factors: dict[str, Factors], **changes: Any
) -> Path:
    """Write an adapter without a certificate; `changes` are of its manifest."""
    updates, blob = write_factors(factors)
    manifest = AdapterManifest(
        schema=1,
        bundle=fingerprint(bundle.manifest),
        source_sha256="0" * 64,
        modules=(),
        ranks=(2,),
        updates=updates,
        files=(File(name=BLOB, size=len(blob), sha256=hashlib.sha256(blob).hexdigest()),),
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / BLOB).write_bytes(blob)
    (folder / NAME).write_bytes(encode(msgspec.structs.replace(manifest, **changes)))
    return folder


def merged(
    weights: dict[str, NDArray[np.float32]], factors: dict[str, Factors]
) -> dict[str, NDArray[np.float32]]:
    """Weights `(inputs, outputs)` of a tiny decoder with the updates added."""
    updates = {name: weights[name] + first @ second for name, (first, second) in factors.items()}
    return weights | updates


NAMES = (None, "a", "b", "c")
"""Adapters of a `Pair`, and no adapter."""


class Pair:
    """A bundle of a kind of `packed_bundles`, loaded without and with three adapters."""

    def __init__(self, folder: Path, kind: str) -> None:
        others = {"chat_template.jinja": TEMPLATE.encode()}
        self.bundle = packed_bundles.write(
            folder / "bundle", kind, group=64, has_text=True, others=others
        )
        kinds: dict[str, dict[str, Any]] = {
            "a": dict(rank=2),
            "b": dict(rank=3, weights=("0.q", "1.o")),
            "c": dict(rank=1),
        }
        self.paths = {
            name: write_adapter(
                folder / name, self.bundle, random_factors(self.bundle, seed=seed, **options)
            )
            for seed, (name, options) in enumerate(kinds.items())
        }
        self.plain = load(self.bundle.path, Decoder, threads=1)
        self.adapted = load(self.bundle.path, Decoder, threads=1, adapters=self.paths)


class Pairs(dict[str, Pair]):
    """Pairs by their kind, written on first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __missing__(self, kind: str) -> Pair:
        self[kind] = Pair(self._folder / kind, kind)
        return self[kind]
