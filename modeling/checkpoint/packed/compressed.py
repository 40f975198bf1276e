"""Weights written by compressed-tensors: which scheme of the config each of them has.

Source: https://github.com/vllm-project/compressed-tensors (`QuantizationArgs`, `match_targets`).
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch

from ortolan.modeling.checkpoint.packed.floats import Scaled
from ortolan.modeling.checkpoint.packed.integers import Rows
from ortolan.modeling.checkpoint.packed.layout import (
    Stored,
    Values,
    block_size,
    matrix,
    one_of,
    optional_bool,
    unsupported,
)
from ortolan.modeling.lazy_tensor import whole_of

FORMATS = (
    None,
    "dense",
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "mxfp8-quantized",
    "mixed-precision",
)

IN_ORDER = (None, False, "weight", "static")
"""Values of `actorder` with which a group consists of adjacent inputs."""

BY_INDEX = (True, "group", "dynamic")
"""Values of `actorder` with which a stored index assigns inputs to groups."""

PACKED, WEIGHT, REGEX = ".weight_packed", ".weight", "re:"

MAX_BITS = 8


class Scheme(NamedTuple):
    """How the weights of a group are quantized.

    Attributes:
        symmetric: zeros are 0.
        strategy: what shares a scale.
        size: inputs that share a scale with the strategy `group`.
        block: rows and columns that share a scale with the strategy `block`.
        ordered: a stored index assigns inputs to groups.
    """

    bits: int
    kind: str
    symmetric: bool
    strategy: str
    size: int | None
    block: tuple[int, int] | None
    ordered: bool

    def shared(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of a matrix that share a scale."""
        columns = shape[1]
        match self.strategy:
            case "tensor":
                return shape
            case "channel":
                return 1, columns
            case "group":
                return 1, min(self.size or columns, columns)
            case _:
                return self.block or shape


class Group(NamedTuple):
    """Names of layers, patterns for them, and classes that share a scheme."""

    targets: tuple[str, ...]
    scheme: Scheme


def compressed(values: Values, stored: Stored) -> Iterator[tuple[str, Rows | Scaled]]:
    """Integers packed into words, and 8-bit floats and integers."""
    for key in ("sparsity_config", "transform_config"):
        value = values.get(key)
        if isinstance(value, dict) and value.get("format", bool(value)) not in (False, "dense"):
            raise unsupported(key, "absent", value)
    groups = _groups(values)
    for name, tensor in stored.items():
        if name.endswith(PACKED):
            stem = name.removesuffix("_packed")
            yield stem, _packed(stem, _scheme_of(groups, stem.removesuffix(WEIGHT)), stored)
        elif name.endswith(WEIGHT) and f"{name}_scale" in stored:
            scheme = _scheme_of(groups, name.removesuffix(WEIGHT))
            yield name, _scaled(name, matrix(name, tensor.shape), scheme, stored)


def _packed(stem: str, scheme: Scheme, stored: Stored) -> Rows:
    one_of(f"{stem}_packed: type", scheme.kind, ("int",))
    bits = one_of("num_bits", scheme.bits, (2, 4, 8))
    strategy = one_of("strategy", scheme.strategy, ("tensor", "channel", "group"))
    rows, inputs = matrix(stem, whole_of(stored[f"{stem}_shape"]).tolist())
    index, zero = f"{stem}_g_idx", f"{stem}_zero_point"
    zeros: Literal["packed", "signed"] | None = None
    if zero in stored:
        zeros = "packed" if stored[zero].dtype == torch.int32 else "signed"
    return Rows(
        stem=stem,
        shape=(rows, inputs),
        bits=bits,
        size=scheme.shared((rows, inputs))[1],
        index=index if index in stored or scheme.ordered else None,
        symmetric=scheme.symmetric,
        ordered=scheme.ordered,
        whole=strategy == "tensor",
        zeros=zeros,
        unread=(f"{stem}_shape",),
    )


def _scaled(name: str, shape: tuple[int, int], scheme: Scheme, stored: Stored) -> Scaled:
    if scheme.kind == "float":
        one_of("num_bits", scheme.bits, (8,))
    zero = f"{name}_zero_point"
    return Scaled(
        name=name,
        scale=f"{name}_scale",
        shape=shape,
        block=scheme.shared(shape),
        dtypes=(torch.int8,) if scheme.kind == "int" else (torch.float8_e4m3fn,),
        zero=zero if zero in stored or not scheme.symmetric else None,
        symmetric=scheme.symmetric,
    )


def _groups(values: Values) -> list[Group]:
    groups = values.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise unsupported("config_groups", "groups of weights", groups)
    found = []
    one_of("format", values.get("format"), FORMATS)
    for name, group in groups.items():
        match group:
            case {"weights": dict() | None, "targets": [*targets]}:
                pass
            case _:
                raise unsupported(f"config_groups.{name}", "targets and weights", group)
        one_of(f"config_groups.{name}.format", group.get("format"), FORMATS)
        if group.get("weights") is not None:
            found.append(Group(tuple(map(str, targets)), _scheme(group["weights"])))
    if not found:
        raise unsupported("config_groups", "groups of weights", groups)
    return found


def _scheme(values: Values) -> Scheme:
    kind = one_of("type", str(values.get("type") or "int").lower(), ("int", "float"))
    size = values.get("group_size")
    if size is not None and (type(size) is not int or (size < 1 and size != -1)):
        raise unsupported("group_size", "-1 or a positive integer", size)
    implied = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = one_of(
        "strategy",
        str(values.get("strategy") or implied).lower(),
        ("tensor", "channel", "group", "block"),
    )
    if strategy == "group" and (size is None or size < 1):
        raise unsupported("group_size", "a positive integer", size)
    block = values.get("block_structure")
    if isinstance(block, str):
        block = [int(number) for number in block.split("x")]
    order = values.get("actorder")
    return Scheme(
        bits=one_of("num_bits", values.get("num_bits", MAX_BITS), range(1, MAX_BITS + 1)),
        kind=kind,
        symmetric=optional_bool("symmetric", values.get("symmetric")) is not False,
        strategy=strategy,
        size=size if strategy == "group" else None,
        block=block_size("block_structure", block) if strategy == "block" else None,
        ordered=one_of("actorder", order, (*IN_ORDER, *BY_INDEX)) in BY_INDEX,
    )


def _scheme_of(groups: Sequence[Group], layer: str) -> Scheme:
    """Scheme of a layer: of the only group, or of the one with the most specific target."""
    ranks = [min((_rank(target, layer) for target in group.targets), default=3) for group in groups]
    best = min(ranks)
    schemes = {g.scheme for g, rank in zip(groups, ranks, strict=True) if rank == best}
    if len({group.scheme for group in groups}) == 1:
        return groups[0].scheme
    if best == 3 or len(schemes) > 1:
        targets = ", ".join(target for group in groups for target in group.targets)
        raise unsupported(f"targets of {layer}", "in one group of config_groups", targets)
    return schemes.pop()


def _rank(target: str, layer: str) -> int:
    """0 for a target that names the layer, 1 for a pattern, 2 for a class, 3 for other layers."""
    if target == layer:
        return 0
    if target.startswith(REGEX):
        return 1 if re.match(target.removeprefix(REGEX), layer) else 3
    return 2 if target.isidentifier() else 3
