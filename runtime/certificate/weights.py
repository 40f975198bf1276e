"""Whether a device computes with the weights that were exported: each by itself, by its kernel.

A weight of a product `(N, K)` gets two vectors of numbers for which float32 is nearly exact, and
its outputs are summed in blocks. What they have to be was computed in float64 from the values that
were meant to be written. Everything else in the file of weights is compared bit by bit.

The vectors hold whole 128ths up to 127 of them, and 127 of them in every `GROUP` of columns, so
that kernels which round what enters to 8 bits, by the largest of a group, round nothing here.

Shape letters: N outputs, K inputs, R vectors, S sums.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.bundle import Bundle, chunks
from ortolan.runtime.certificate.arrays import damaged
from ortolan.runtime.engine.session import run_alone
from ortolan.runtime.graph.products import PRODUCT_INPUT, PRODUCT_OUTPUT, Product, products
from ortolan.runtime.graph.summary import ExternalTensor

__all__ = [
    "BLOCK",
    "BOUNDS",
    "VECTORS",
    "ExpectedWeights",
    "WeightsReport",
    "block_sizes",
    "block_sums",
    "blocks",
    "check_weights",
    "probe_vectors",
]

VECTORS = 2
"""Vectors that each weight is multiplied by."""

BLOCK = 32
"""Outputs that are summed, with signs."""

GROUP = 16
"""Columns of which one has the largest number: kernels round by groups of at least as many."""

BOUNDS: Mapping[str, float] = {"float32": 3e-7, "float16": 1e-3, "bfloat16": 8e-3}
"""By the type of the activations: the largest error of a sum, relative to the sum of all products
without their signs."""

_FAR = 1e9
"""An error that is not finite, in JSON."""

_STEP, _PROMPT = [0], [0, 1, 0]
"""Which vectors are the rows of a call: kernels for one row and for several are not the same."""

_LOOKED_UP = 1 << 22
"""Numbers of a table that are in memory at once."""

_LISTED = 4
"""Wrong weights that a report names."""

Sums = NDArray[np.float64]


class WeightsReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the weights of a bundle compute on a device, one by one.

    Attributes:
        products: weights that were multiplied by, or whose rows were looked up.
        largest_error: of one sum, relative to the sum of its products without their signs.
        bound: how large it may be.
        stored: other tensors, compared bit by bit.
        wrong: weights that are not what was exported, by name.
    """

    products: int
    largest_error: float
    bound: float
    stored: int
    wrong: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """In one line."""
        if self.wrong:
            more = f" and {len(self.wrong) - _LISTED} more" if len(self.wrong) > _LISTED else ""
            return f"other weights than were exported: {', '.join(self.wrong[:_LISTED])}{more}"
        return (
            f"{self.products} weights by their kernels, largest error {self.largest_error:.0e} "
            f"(at most {self.bound:.0e}), {self.stored} tensors bit by bit"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedWeights:
    """What the weights of a bundle have to compute.

    Attributes:
        outputs: of each weight, by the name of its initializer.
        sums: float32 `(R, S)`, of all weights in the order of their names (`block_sums`).
        sizes: float32 `(S,)`, of the products without their signs.
        stored: sha256 of every tensor that no product reads, by name.
    """

    outputs: Mapping[str, int] = field(default_factory=dict)
    sums: NDArray[np.float32] = field(default_factory=lambda: np.empty((VECTORS, 0), np.float32))
    sizes: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    stored: Mapping[str, str] = field(default_factory=dict)

    def of_weights(self) -> dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Sums `(R, S)` and sizes `(S,)` of each weight."""
        found, start = {}, 0
        for name in sorted(self.outputs):
            part = slice(start, start + blocks(self.outputs[name]))
            found[name] = (self.sums[:, part], self.sizes[part])
            start = part.stop
        return found


def blocks(outputs: int) -> int:
    """Sums of a weight with so many outputs."""
    return -(-outputs // BLOCK)


def probe_vectors(width: int, *, whole_range: bool = False) -> NDArray[np.float32]:
    """The vectors that a weight is multiplied by, `(R, K)`: the same for ever.

    Args:
        width: `K`.
        whole_range: for kernels that round by the range from the smallest to the largest number
            into 256 steps: the largest is one step further from 0 than the smallest.
    """
    random = np.random.RandomState(width)
    numbers_RK = random.randint(-127, 128, (VECTORS, width))
    for start in range(0, width, GROUP):
        places = start + random.randint(0, min(GROUP, width - start), VECTORS)
        numbers_RK[range(VECTORS), places] = random.choice([-127, 127], VECTORS)
    if whole_range:
        numbers_RK[:, 0], numbers_RK[:, -1] = 128, -127
    return (numbers_RK / 128).astype(np.float32)


def block_sums(outputs_RN: Sums) -> Sums:
    """Outputs with signs, summed in blocks: `(R, S)`."""
    signs = np.random.RandomState(0).randint(0, 2, outputs_RN.shape[1]) * 2 - 1
    return block_sizes(outputs_RN * signs)


def block_sizes(sizes_RN: Sums) -> Sums:
    """Sizes, summed in blocks: `(R, S)`."""
    padding = -sizes_RN.shape[1] % BLOCK
    padded = np.pad(sizes_RN.astype(np.float64), ((0, 0), (0, padding)))
    summed: Sums = padded.reshape(len(padded), -1, BLOCK).sum(axis=-1)
    return summed


def check_weights(
    bundle: Bundle,
    expected: ExpectedWeights,
    *,
    threads: int,
    progress: Callable[[int, int], None] | None = None,
) -> WeightsReport:
    """Compute with every weight of a bundle by itself.

    Memory holds one weight at a time.

    Args:
        bundle: its files were checked.
        expected: of the same bundle.
        threads: within one operator.
        progress: called with the products done and the products in total.

    Raises:
        CertificateError: a tensor that the graphs read is not in the certificate.
        GraphError: onnxruntime cannot run a product.
    """
    found = list(_products(bundle))
    tensors = {tensor.name: tensor for graph in bundle.graphs.values() for tensor in graph.external}
    read = {name for product in found for name in product.reads}
    sums = expected.of_weights()
    _check_complete(tensors, read, {product.weight for product in found}, expected)
    wrong, largest, bound = [], 0.0, 0.0
    for number, product in enumerate(found):
        error, most = _error(bundle, product, *sums[product.weight], threads), BOUNDS[product.dtype]
        largest, bound = max(largest, error), max(bound, most)
        if not error <= most:
            wrong.append(product.weight)
        if progress is not None:
            progress(number + 1, len(found))
    kept = [tensors[name] for name in expected.stored]
    wrong += [each.name for each in kept if _digest(bundle, each) != expected.stored[each.name]]
    return WeightsReport(
        products=len(found),
        largest_error=largest,
        bound=bound,
        stored=len(kept),
        wrong=tuple(dict.fromkeys(wrong)),
    )


def _products(bundle: Bundle) -> Iterator[Product]:
    """The products of all graphs, each once."""
    seen = set()
    for graph in bundle.manifest.graphs.values():
        for product in products(bundle.read(graph.file)):
            if product.graph not in seen:
                seen.add(product.graph)
                yield product


def _check_complete(
    tensors: Mapping[str, ExternalTensor],
    read: set[str],
    weights: set[str],
    expected: ExpectedWeights,
) -> None:
    """See that everything which the graphs read is in the certificate, and nothing else."""
    if weights != expected.outputs.keys():
        odd = sorted(weights ^ expected.outputs.keys())
        raise damaged("the sums of all weights that graphs multiply by", f"other ones: {odd[:4]}")
    if tensors.keys() - read != expected.stored.keys():
        odd = sorted((tensors.keys() - read) ^ expected.stored.keys())
        raise damaged("the hashes of all other tensors of the graphs", f"other ones: {odd[:4]}")


def _error(
    bundle: Bundle,
    product: Product,
    sums_RS: NDArray[np.float32],
    sizes_S: NDArray[np.float32],
    threads: int,
) -> float:
    """The largest error of a weight, relative to the size of what was summed."""
    x_RK = probe_vectors(product.inputs, whole_range=product.whole_range)
    run = run_alone(bundle, product.graph, threads=threads)
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
    product: Product, x_RK: NDArray[np.float32], run: Callable[[Any], dict[str, NDArray[Any]]]
) -> Iterator[tuple[list[int], Sums]]:
    """Outputs `(R, N)` by the kernel, and which vectors they are of."""
    if product.looks_up:
        yield list(range(VECTORS)), np.concatenate([*_looked_up(product, x_RK, run)], axis=1)
        return
    x_RK = x_RK.astype(product.dtype)
    for rows in (_STEP, _PROMPT):
        yield rows, run({PRODUCT_INPUT: x_RK[rows]})[PRODUCT_OUTPUT].astype(np.float64)


def _looked_up(
    product: Product, x_RK: NDArray[np.float32], run: Callable[[Any], dict[str, NDArray[Any]]]
) -> Iterator[Sums]:
    """Rows of a table, multiplied here, some rows at a time."""
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
