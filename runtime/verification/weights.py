"""Checks each weight of a bundle alone, by the kernel that uses it.

Each weight multiplies vectors whose numbers are nearly exact in float32, and its outputs are summed
(`weight_sums`). The expected sums were computed in float64 from the values meant to be written. All
other tensors are compared bit by bit.

Shape letters: N outputs, K inputs, R vectors, S sums.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.bundle import Bundle, chunks
from ortolan.runtime.engine.ort_session import open_part
from ortolan.runtime.graph.products import (
    CODE_MIDDLE,
    CODE_STEP,
    PRODUCT_INPUT,
    PRODUCT_OUTPUT,
    Product,
    products,
)
from ortolan.runtime.graph.summary import ExternalTensor
from ortolan.runtime.verification.certificate_arrays import damaged
from ortolan.runtime.verification.weight_sums import (
    VECTORS,
    ExpectedWeights,
    Sums,
    WeightsReport,
    block_sums,
    weight_inputs,
)

BOUNDS: Mapping[str, float] = {"float32": 5e-7, "float16": 1e-3, "bfloat16": 8e-3}
"""Tolerance of a sum relative to the sum of absolute products, by type of the activations."""

Run = Callable[[Mapping[str, NDArray[Any]]], dict[str, NDArray[Any]]]

_FAR = 1e9
"""Stands for an infinite error, which JSON cannot hold."""

_STEP, _PROMPT = [0], [0, 1, 0]
"""Vectors in each call: kernels for one row and for several rows differ."""

_LOOKED_UP = 1 << 22
"""Numbers of a table in memory at once."""


def check_weights(
    bundle: Bundle, expected: ExpectedWeights, *, threads: int, device: str = "cpu"
) -> WeightsReport:
    """Compute with each weight of a bundle alone, one at a time in memory."""
    graphs = [bundle.read(graph.file) for graph in bundle.manifest.graphs.values()]
    # graphs share products
    parts = {product.graph: product for data in graphs for product in products(data)}.values()
    tensors = {tensor.name: tensor for graph in bundle.graphs.values() for tensor in graph.external}
    others = tensors.keys() - {name for product in parts for name in product.reads}
    for what, names, listed in (
        ("a sum for every weight", {part.weight for part in parts}, expected.outputs.keys()),
        ("a hash for every other tensor", others, expected.stored.keys()),
    ):
        if names != listed:
            raise damaged(f"{what} of the graphs", f"a mismatch in {sorted(names ^ listed)[:4]}")
    sums, wrong, largest, bound = expected.of_weights(), [], 0.0, 0.0
    for product in parts:
        run = open_part(bundle, product.graph, threads=threads, device=device)
        error, most = _error(product, *sums[product.weight], run), BOUNDS[product.dtype]
        largest, bound = max(largest, error), max(bound, most)
        if not error <= most:
            wrong.append(product.weight)
    stored = expected.stored.items()
    wrong += [name for name, sha256 in stored if _digest(bundle, tensors[name]) != sha256]
    return WeightsReport(
        products=len(parts),
        largest_error=largest,
        bound=bound,
        stored=len(stored),
        wrong=tuple(dict.fromkeys(wrong)),
    )


def _error(
    product: Product, sums_RS: NDArray[np.float32], sizes_S: NDArray[np.float32], run: Run
) -> float:
    """Return the largest error of a weight, relative to the sum of absolute products."""
    x_RK = weight_inputs(product.inputs, whole_range=product.whole_range)
    largest = 0.0
    for rows, outputs_RN in _outputs(product, x_RK, run):
        if outputs_RN.shape[1] != product.outputs or not np.isfinite(outputs_RN).all():
            return _FAR
        off = np.abs(block_sums(outputs_RN) - sums_RS[rows])
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.where(off == 0, 0, np.minimum(off / sizes_S, _FAR))
        largest = max(largest, float(relative.max()))
    return largest


def _outputs(
    product: Product, x_RK: NDArray[np.float32], run: Run
) -> Iterator[tuple[list[int], Sums]]:
    """Yield outputs `(R, N)` of the kernel and the numbers of their vectors."""
    if product.looks_up:
        yield list(range(VECTORS)), np.concatenate([*_looked_up(product, x_RK, run)], axis=1)
        return
    entering_RK, size = x_RK.astype(product.dtype), 1.0
    if product.reads_codes:
        # the vectors have steps of 1/128
        entering_RK, size = (x_RK * 128 + CODE_MIDDLE).astype(np.uint8), 128 * CODE_STEP
    for rows in (_STEP, _PROMPT):
        outputs_RN = run({PRODUCT_INPUT: entering_RK[rows]})[PRODUCT_OUTPUT]
        yield rows, outputs_RN.astype(np.float64) / size


def _looked_up(product: Product, x_RK: NDArray[np.float32], run: Run) -> Iterator[Sums]:
    """Yield products of a few rows of a table at a time, computed here."""
    step = max(1, _LOOKED_UP // product.inputs)
    for start in range(0, product.outputs, step):
        ids = np.arange(start, min(start + step, product.outputs))
        rows_NK = run({PRODUCT_INPUT: ids})[PRODUCT_OUTPUT]
        yield x_RK.astype(np.float64) @ rows_NK.T.astype(np.float64)


def _digest(bundle: Bundle, tensor: ExternalTensor) -> str:
    digest = hashlib.sha256()
    with bundle.file(tensor.file).open("rb") as file:
        file.seek(tensor.offset)
        for chunk in chunks(file, tensor.file, tensor.length):
            digest.update(chunk)
    return digest.hexdigest()
