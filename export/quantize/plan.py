"""Which weights are stored in how many bits.

Knows roles: what a product reads, what is looked up. Does not know how codes are found.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import onnx_ir as ir

from ortolan.export.errors import OptionError
from ortolan.export.quantize.blocks import Scheme
from ortolan.modeling.weights import EMBEDDING, HEAD

Method = Literal["rtn", "hqq", "gptq"]

METHODS: tuple[Method, ...] = ("rtn", "hqq", "gptq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How weights are stored.

    Attributes:
        scheme: of the blocks' products.
        head: of the head and the embedding, which share a table where they are tied.
        method: how the codes of the products are found.
        exclude: patterns of weights that stay as they are (`fnmatch`).
    """

    scheme: Scheme
    head: Scheme
    method: Method
    exclude: tuple[str, ...] = ()


def plan(models: Iterable[ir.Model], options: Quantization) -> dict[str, Scheme]:
    """The scheme of every weight that is quantized, by the name of its initializer.

    Position tables, norms and biases are not: they are small.

    Args:
        models: tidied graphs.
        options: what to do.

    Raises:
        OptionError: a pattern of `exclude` matches no weight.
    """
    names = dict.fromkeys(name for model in models for name in _matrices(model.graph))
    unmatched = [
        pattern for pattern in options.exclude if not any(fnmatchcase(n, pattern) for n in names)
    ]
    if unmatched:
        raise OptionError(
            f"exclude: expected patterns of weights, got {unmatched[0]!r}, which matches none. "
            f"There are {', '.join(_examples(names))}."
        )
    return {
        name: options.head if name in (EMBEDDING, HEAD) else options.scheme
        for name in names
        if not any(fnmatchcase(name, pattern) for pattern in options.exclude)
    }


def _matrices(graph: ir.Graph) -> list[str]:
    """Weights of products, and the embedding."""
    read = [node.inputs[1] for node in graph if node.op_type == "FusedMatMul"]
    names = [value.name for value in read if value is not None and value.name]
    return names + [name for name in graph.initializers if name == EMBEDDING]


def _examples(names: Sequence[str] | dict[str, None]) -> list[str]:
    return list(names)[:3] + list(names)[-1:]
