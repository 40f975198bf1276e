"""The quick proof finds damage to single weights."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.export import tiny_models

import ortolan
from ortolan.export.options import ExportOptions, Int4, Int8
from ortolan.runtime import open_bundle
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.manifest import NAME
from ortolan.runtime.bundle.manifest_file import encode
from ortolan.runtime.graph.summary import ExternalTensor
from ortolan.runtime.verification.certificate_files import read_certificate
from ortolan.runtime.verification.weights import check_weights

GROUP = 32
"""Number of float32 values that change together."""

SUFFIXES = {
    ".codes": "group",
    ".channels": "group",
    ".scales": "scale",
    ".channel_scales": "scale",
    ".zeros": "zero point",
}


@pytest.mark.parametrize(
    ("precision", "options"),
    [
        ("fp32", {}),
        ("fp16", {}),
        (Int8(), {}),
        (Int4(method="rtn", asymmetric=True), {}),
        (Int4(method="rtn"), {"attention": "portable"}),
        (Int4(method="rtn"), {"graphs": "split", "prefill_precision": "int8"}),
    ],
    ids=["fp32", "fp16", "int8", "int4", "portable", "split"],
)
def test_every_kind_of_weight_is_proved_and_single_damages_are_found(
    tmp_path: Path, precision: Any, options: dict[str, Any]
) -> None:
    module = tiny_models.decoder(tiny_models.llama())
    given = ExportOptions(allow_poor=True, **options)
    bundle = ortolan.export(module, tmp_path / "bundle", precision=precision, options=given)
    expected = read_certificate(bundle).weights
    sound = check_weights(bundle, expected, threads=1)
    assert sound.wrong == ()
    assert 30 * sound.largest_error < sound.bound
    if precision == "fp16":
        return  # damage to one value is below the rounding of such kernels
    for kind, name in damages(bundle.path, count=4, seed=1):
        report = check_weights(open_bundle(bundle.path), expected, threads=1)
        (wrong,) = {each.rpartition(".")[0] for each in report.wrong}
        assert name.startswith(wrong), kind


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
        suffix = next((end for end in SUFFIXES if name.endswith(end)), None)
        if suffix is not None:
            tensors.setdefault(SUFFIXES[suffix], []).append(tensor)
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
