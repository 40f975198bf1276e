"""Adds the low-rank updates of adapters to the products of a graph.

    x ─┬─► product by a weight, and its bias ───────────────► Add ─► y
       └─► MatMul(first) ─► Mul(mask) ─► MatMul(second) ──────┘

The factors of all adapters lie side by side, so one product serves rows of different adapters: the
mask keeps the columns of a row's own adapter and zeroes the others. A row without an adapter adds
exact zeros, and the result of a row does not depend on the adapters of other rows.

The update is added after the bias: kernels may add a bias in an order of their own, which a node in
between would change.

Shape letters: B rows, S tokens, K inputs, W columns of all adapters, N outputs.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.errors import AdapterError
from ortolan.runtime.graph.products import Product, placed_products
from ortolan.runtime.graph.schema import message_of, parse_model
from ortolan.runtime.graph.small_model import node_of

_SUFFIXES = (".codes", ".channels")
"""Suffixes of low-bit weights in a graph; without them the name is that of the model."""

_FLOAT, _INT64 = 1, 7
"""Element types, as ONNX numbers them."""

_ELEMENTS = {np.dtype(np.float32): _FLOAT, np.dtype(np.int64): _INT64}


class JoinedFactors(NamedTuple):
    """The updates of one weight `(N, K)` by several adapters.

    Attributes:
        first: float32 `(K, W)`.
        second: float32 `(W, N)`.
        owners: number of the adapter of each column, `W` of them.
    """

    first: NDArray[np.float32]
    second: NDArray[np.float32]
    owners: tuple[int, ...]


def adaptable_weights(data: bytes) -> dict[str, tuple[int, int]]:
    """Return the shape `(N, K)` of every weight whose products can be adapted, by name."""
    return {
        _weight_name(product): (product.outputs, product.inputs)
        for _, product in placed_products(parse_model(data))
        if not (product.looks_up or product.reads_codes) and product.dtype == "float32"
    }


def adapted_graph(data: bytes, updates: Mapping[str, JoinedFactors], *, rows: str) -> bytes:
    """Return a decoder's graph with the updates of some weights, by name of weight.

    Its new input `rows` is the number of each row's adapter, int64 `(B,)`; 0 for none.
    """
    shapes = adaptable_weights(data)
    for name, (first, second, _) in updates.items():
        if shapes.get(name) != (second.shape[1], first.shape[0]):
            got = f"as {shapes[name]}" if name in shapes else "in no product that can be adapted"
            raise AdapterError(
                f"The adapter updates {name} as a float32 matrix "
                f"{(second.shape[1], first.shape[0])}, but the bundle has it {got}. "
                "Export the checkpoint with the adapter merged: --adapter."
            )
    model = parse_model(data)
    graph = model.graph
    biased = _biased(graph)
    places = {
        biased.get(node.output[0], node.output[0]): (node.input[0], _weight_name(product))
        for node, product in placed_products(model)
        if not product.looks_up and _weight_name(product) in updates
    }
    masks = {
        owners: f"{rows}.mask.{number}"
        for number, owners in enumerate(dict.fromkeys(joined.owners for joined in updates.values()))
    }
    nodes = list(_mask_nodes(masks, rows))
    for node in graph.node:
        nodes.append(node)
        if node.output and node.output[0] in places:
            x, name = places[node.output[0]]
            nodes += _update_nodes(node, x.decode(), name, masks[updates[name].owners])
    renewed = message_of("Graph")
    renewed.node.extend(nodes)
    graph.ClearField("node")
    graph.node.extend(renewed.node)
    _add_tensors(graph, masks, updates, rows)
    value = graph.input.add(name=rows.encode())
    value.type.tensor_type.elem_type = _INT64
    value.type.tensor_type.shape.dim.add(dim_param=b"batch")
    adapted: bytes = model.SerializeToString()
    return adapted


def _weight_name(product: Product) -> str:
    """Name in the model of a product's weight."""
    name = product.weight
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def _biased(graph: Any) -> dict[bytes, bytes]:
    """Outputs after the bias, by the output that only the Add of a bias reads."""
    vectors = {tensor.name for tensor in graph.initializer if len(tensor.dims) == 1}
    readers: dict[bytes, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    return {
        name: users[0].output[0]
        for name, users in readers.items()
        if len(users) == 1 and users[0].op_type == b"Add" and not vectors.isdisjoint(users[0].input)
    }


def _mask_nodes(masks: Mapping[tuple[int, ...], str], rows: str) -> Iterator[Any]:
    """Nodes that compute the masks, float32 `(B, 1, W)`."""
    yield node_of("Reshape", (rows, f"{rows}.shape"), f"{rows}.column")
    for mask in masks.values():
        yield node_of("Equal", (f"{rows}.column", f"{mask}.owners"), f"{mask}.equal")
        yield node_of("Cast", (f"{mask}.equal",), mask, to=_FLOAT)


def _update_nodes(last: Any, x: str, name: str, mask: str) -> Iterator[Any]:
    """Nodes that add an update to the output of a node, which they rename."""
    out = last.output[0].decode()
    last.output[0] = f"{out}.base".encode()
    yield node_of("MatMul", (x, f"{name}.first"), f"{out}.low")
    yield node_of("Mul", (f"{out}.low", mask), f"{out}.own")
    yield node_of("MatMul", (f"{out}.own", f"{name}.second"), f"{out}.update")
    yield node_of("Add", (f"{out}.base", f"{out}.update"), out)


def _add_tensors(
    graph: Any,
    masks: Mapping[tuple[int, ...], str],
    updates: Mapping[str, JoinedFactors],
    rows: str,
) -> None:
    """Add the initializers that the new nodes read."""
    tensors: dict[str, NDArray[Any]] = {f"{rows}.shape": np.array([-1, 1, 1], np.int64)}
    for owners, mask in masks.items():
        tensors[f"{mask}.owners"] = np.array(owners, np.int64)
    for name, (first, second, _) in updates.items():
        tensors |= {f"{name}.first": first, f"{name}.second": second}
    for name, array in tensors.items():
        graph.initializer.add(
            name=name.encode(),
            dims=array.shape,
            data_type=_ELEMENTS[array.dtype],
            raw_data=array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes(),
        )
