"""Expected sums of weights in a certificate, computed without the export."""

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.graph.products import products
from ortolan.runtime.verification.weight_sums import (
    ExpectedWeights,
    block_sizes,
    block_sums,
    probe_vectors,
)


def expected_weights(
    weights: dict[str, NDArray[np.float32]], graphs: Iterable[bytes]
) -> ExpectedWeights:
    """Return the sums of every product of some graphs, and the hashes of all other weights."""
    by_weight = {product.weight: product for data in graphs for product in products(data)}
    sums, sizes = [], []
    for name, product in sorted(by_weight.items()):
        values_NK = weights[name].T if product.by_columns else weights[name]
        x_RK = probe_vectors(product.inputs).astype(np.float64)
        sums.append(block_sums(x_RK @ values_NK.T.astype(np.float64)))
        sizes.append(block_sizes(np.abs(x_RK).max(0)[None] @ np.abs(values_NK.T))[0])
    read = {name for product in by_weight.values() for name in product.reads}
    return ExpectedWeights(
        outputs={name: product.outputs for name, product in by_weight.items()},
        sums=np.concatenate(sums, axis=1).astype(np.float32),
        sizes=np.concatenate(sizes).astype(np.float32),
        stored={
            name: hashlib.sha256(values.tobytes()).hexdigest()
            for name, values in weights.items()
            if name not in read
        },
    )
