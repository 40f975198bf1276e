"""Records what the weights of a bundle must compute, while they are written.

Works in float64 on the intended values, independently of the bytes in the file and their layout.

Shape letters: N outputs, K inputs, R vectors.
"""

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import Tensor

from ortolan.export.proof.placement import without_weights
from ortolan.runtime.graph.products import Product, products
from ortolan.runtime.verification.weight_sums import (
    VECTORS,
    ExpectedWeights,
    block_sizes,
    block_sums,
    weight_inputs,
)


class WeightSums:
    """Sums of every weight that a product reads, and hashes of all other tensors."""

    def __init__(self, models: Iterable[ir.Model]) -> None:
        models = list(models)
        nodes = [node for model in models for node in products(without_weights(model))]
        self._names = {name for model in models for name in model.graph.initializers}
        self._products = {product.weight: product for product in nodes}
        self._read = {name for product in nodes for name in product.reads}
        self._vectors: dict[tuple[int, bool], Tensor] = {}
        self._outputs: dict[str, NDArray[np.float64]] = {}
        self._sizes: dict[str, NDArray[np.float64]] = {}
        self._stored: dict[str, str] = {}

    def reads(self, name: str) -> bool:
        """Whether a product reads an initializer."""
        return name in self._read

    def weight(self, name: str, start: int, values_NK: Tensor) -> None:
        """Record rows of a product's weight; ignore any other initializer."""
        product = self._products.get(name)
        if product is not None:
            self._add(product, values_NK, rows=slice(start, start + len(values_NK)))

    def initializer(self, name: str, start: int, values: Tensor) -> None:
        """Like `weight`, for rows in the graph's layout, which may be columns of the product."""
        product = self._products.get(name)
        if product is None or not product.by_columns:
            self.weight(name, start, values)
        else:
            self._add(product, values.T, inputs=slice(start, start + len(values)))

    def stored(self, name: str, digest: str) -> None:
        """Record the sha256 of an initializer that no product reads."""
        if name in self._names:
            self._stored[name] = digest

    def finish(self) -> ExpectedWeights:
        """Everything that was recorded."""
        names = sorted(self._outputs)
        empty = np.empty((VECTORS, 0))
        sums = [block_sums(self._outputs[name]) for name in names]
        sizes = [block_sizes(self._sizes[name][None])[0] for name in names]
        return ExpectedWeights(
            outputs={name: self._outputs[name].shape[1] for name in names},
            sums=np.concatenate([empty, *sums], axis=1).astype(np.float32),
            sizes=np.concatenate([np.empty(0), *sizes]).astype(np.float32),
            stored=dict(sorted(self._stored.items())),
        )

    def _add(
        self,
        product: Product,
        values_NK: Tensor,
        *,
        rows: slice = slice(None),
        inputs: slice = slice(None),
    ) -> None:
        name = product.weight
        if name not in self._outputs:
            self._outputs[name] = np.zeros((VECTORS, product.outputs))
            self._sizes[name] = np.zeros(product.outputs)
        x_RK = self._vector(product)[:, inputs]
        # The last group of a table may be padded with columns that the weight does not have.
        x_RK = x_RK[:, : values_NK.shape[1]]
        self._outputs[name][:, rows] += (x_RK @ values_NK.T.double()).numpy()
        self._sizes[name][rows] += (values_NK.float().abs() @ x_RK.float().abs().amax(0)).numpy()

    def _vector(self, product: Product) -> Tensor:
        key = (product.inputs, product.whole_range)
        if key not in self._vectors:
            numbers = weight_inputs(product.inputs, whole_range=product.whole_range)
            self._vectors[key] = torch.from_numpy(numbers).double()
        return self._vectors[key]
