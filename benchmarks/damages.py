"""Count how many single damages to a bundle's weights `ortolan verify` detects.

    python benchmarks/damages.py BUNDLE [--count 200] [--seed 0]

Each damage changes one scale, one group of codes, one zero point or one value of a norm in a copy
of the bundle, and updates the hash in its manifest, so that only the certificate can detect it. In
float weights, a group is as many values, and its scale a factor for all of them.
"""

import argparse
import hashlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortolan.runtime import open_bundle
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.manifest import NAME
from ortolan.runtime.bundle.manifest_file import encode
from ortolan.runtime.graph.summary import ExternalTensor
from ortolan.runtime.verification.replay import verify

GROUP = 32
"""Number of float32 values that change together."""

KINDS = ("scale", "group", "zero point", "norm")

_SUFFIXES = {
    ".codes": "group",
    ".channels": "group",
    ".scales": "scale",
    ".channel_scales": "scale",
    ".zeros": "zero point",
}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    done, detected = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "bundle"
        shutil.copytree(args.bundle, copy)
        if verify(copy, exact=False, isolate=False).verdict == "FAIL":
            raise SystemExit(f"{args.bundle}: fails verification before any damage.")
        for kind, name in damages(copy, count=args.count, seed=args.seed):
            done[kind] += 1
            if verify(copy, exact=False, isolate=False).verdict == "FAIL":
                detected[kind] += 1
            else:
                print(f"missed: {kind} of {name}")
    for kind in done:
        print(f"{kind:<12} {detected[kind]:>4} of {done[kind]}")
    total = sum(done.values())
    print(f"{'all':<12} {detected.total():>4} of {total}: {detected.total() / total:.1%}")


def damages(folder: Path, *, count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Damage a bundle in place, and repair it before the next damage.

    Yields:
        The kind of damage, and the name of the tensor.
    """
    random, bundle = np.random.default_rng(seed), open_bundle(folder)
    tensors = _by_kind(bundle)
    weights = folder / bundle.manifest.weights[0]
    for _ in range(count):
        kind = str(random.choice(sorted(tensors)))
        sizes = np.array([tensor.length for tensor in tensors[kind]], float)
        tensor = tensors[kind][int(random.choice(len(sizes), p=sizes / sizes.sum()))]
        with weights.open("r+b") as file:
            file.seek(tensor.offset)
            before = file.read(tensor.length)
            after = _changed(kind, tensor, before, random)
            file.seek(tensor.offset)
            file.write(after)
        _hash_again(folder, bundle)
        yield kind, tensor.name
        with weights.open("r+b") as file:
            file.seek(tensor.offset)
            file.write(before)
    (folder / NAME).write_bytes(encode(bundle.manifest))


def _by_kind(bundle: Bundle) -> dict[str, list[ExternalTensor]]:
    tensors: dict[str, list[ExternalTensor]] = {}
    external = {tensor.name: tensor for g in bundle.graphs.values() for tensor in g.external}
    for name, tensor in external.items():
        suffix = next((end for end in _SUFFIXES if name.endswith(end)), None)
        if suffix is not None:
            tensors.setdefault(_SUFFIXES[suffix], []).append(tensor)
        elif len(tensor.dims) == 1 and "norm" in name:
            tensors.setdefault("norm", []).append(tensor)
        elif len(tensor.dims) == 2 and not bundle.manifest.quantized:
            tensors.setdefault("group", []).append(tensor)
            tensors.setdefault("scale", []).append(tensor)
    return tensors


def _changed(kind: str, tensor: ExternalTensor, data: bytes, random: np.random.Generator) -> bytes:
    """Bytes of a tensor with one damage."""
    if tensor.dtype == "float32":
        values: NDArray[np.float32] = np.frombuffer(data, np.float32).copy()
        size = GROUP if len(tensor.dims) == 2 and not tensor.name.endswith("scales") else 1
        start = int(random.integers(len(values) // size)) * size
        part = slice(start, start + size)
        if kind == "group":
            values[part] = random.permutation(values)[:size]
        else:
            values[part] *= 1.05 if kind == "norm" else 1.1
        return values.tobytes()
    codes: NDArray[np.uint8] = np.frombuffer(data, np.uint8).copy()
    if kind == "zero point":
        place = int(random.integers(len(codes)))
        codes[place] ^= 1 if random.random() < 0.5 else 16
        return codes.tobytes()
    size = tensor.dims[-1] if len(tensor.dims) == 3 else GROUP
    start = int(random.integers(len(codes) // size)) * size
    codes[start : start + size] = random.integers(0, 256, size)
    return codes.tobytes()


def _hash_again(folder: Path, bundle: Bundle) -> None:
    """Write the manifest with the hash of the damaged weights."""
    manifest, name = bundle.manifest, bundle.manifest.weights[0]
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    files = tuple(
        msgspec.structs.replace(file, sha256=digest) if file.name == name else file
        for file in manifest.files
    )
    (folder / NAME).write_bytes(encode(msgspec.structs.replace(manifest, files=files)))


if __name__ == "__main__":
    main()
