"""The quick proof finds damage to single weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.export import tiny_models
from tests.runtime.damaged_bundles import damage

import ortolan
from ortolan.export.options import ExportOptions, Int4, Int8
from ortolan.runtime import open_bundle
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.manifest import NAME
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
    random, tensors = np.random.default_rng(1), by_kind(bundle)
    files = {name: (bundle.path / name).read_bytes() for name in (NAME, *bundle.manifest.weights)}
    for _ in range(4):
        kind = str(random.choice(sorted(tensors)))
        sizes = np.array([tensor.length for tensor in tensors[kind]], float)
        tensor = tensors[kind][int(random.choice(len(sizes), p=sizes / sizes.sum()))]
        damage(bundle.path, tensor.name, change(kind, tensor, random))
        report = check_weights(open_bundle(bundle.path), expected, threads=1)
        (wrong,) = {name.rpartition(".")[0] for name in report.wrong}
        assert tensor.name.startswith(wrong), kind
        for name, data in files.items():
            (bundle.path / name).write_bytes(data)


def by_kind(bundle: Bundle) -> dict[str, list[ExternalTensor]]:
    """Tensors by the damage that they can have."""
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


def change(
    kind: str, tensor: ExternalTensor, random: np.random.Generator
) -> Callable[[NDArray[Any]], None]:
    """One damage to some values of a tensor."""

    def apply(values: NDArray[Any]) -> None:
        flat, size = values.reshape(-1), 1
        if kind == "group" or (len(tensor.dims) == 2 and not tensor.name.endswith("scales")):
            size = tensor.dims[-1] if len(tensor.dims) == 3 else GROUP
        if kind == "zero point":
            size = 1
        start = int(random.integers(len(flat) // size)) * size
        part = slice(start, start + size)
        if kind == "zero point":
            flat[part] ^= 1 if random.random() < 0.5 else 16
        elif kind in ("scale", "norm"):
            flat[part] *= 1.05 if kind == "norm" else 1.1
        elif tensor.dtype == "float32":
            flat[part] = random.permutation(flat)[:size]
        else:
            flat[part] = random.integers(0, 256, size).astype(np.uint8).view(flat.dtype)

    return apply
