"""Parts of the tables that map published weight names to ours."""

from collections.abc import Mapping

from ortolan.modeling.weights import Entry, Rows, Table, Target

QKV, OUT = "attention.qkv", "attention.out"
UP, DOWN = "feed_forward.up", "feed_forward.down"
NORM_1, NORM_2 = "attention_norm", "feed_forward_norm"

HALVES = (Rows(1, 2, -1, ((0, 1),)), Rows(1, 2, -1, ((1, 2),)))
"""The first and the second half of a matrix's rows."""


def linear(
    modules: Mapping[str, str],
    theirs: str = "",
    ours: str = "",
    *,
    rows: Rows | None = None,
    spare: bool = False,
) -> dict[str, Entry]:
    """Weights and biases of modules."""
    return {
        f"{theirs}{their}.{kind}": Target(f"{ours}{our}.{kind}", rows=rows, spare=spare)
        for kind in ("weight", "bias")
        for their, our in modules.items()
    }


def qkv(names: str) -> dict[str, str]:
    """Queries, keys and values by their published names, where `{}` is q, k or v."""
    return {names.format(part): QKV for part in "qkv"}


def layer(theirs: str, modules: Mapping[str, str], *, rows: Rows | None = None) -> dict[str, Entry]:
    """Weights and biases of the modules of every layer; `theirs` is the published prefix."""
    return linear(modules, theirs, "blocks.{}.", rows=rows)


def grouped(heads: int, kv_heads: int) -> Rows:
    """Rows that hold, for each key and value head: its queries, its key, its value."""
    queries = heads // kv_heads
    ends = (queries, queries + 1, queries + 2)
    return Rows(kv_heads, queries + 2, -1, tuple(zip((0, *ends), ends, strict=False)))


def gate_up(ours: str, kind: str = "weight") -> tuple[Target, ...]:
    """A published matrix that holds the rows of the gate, then those of up."""
    names = (f"{ours}.{part}.{kind}" for part in ("gate", "up"))
    return tuple(Target(name, rows=rows) for name, rows in zip(names, HALVES, strict=True))


def gain(ours: str) -> Target:
    """The weight of a norm that is published less one."""
    return Target(f"{ours}.weight", offset=1.0)


def either(*names: str, offset: float = 0.0) -> tuple[Target, ...]:
    """One published name for several of ours, of which each layer has one."""
    return tuple(Target(name, offset=offset) for name in names)


def without(table: Table, *parts: str) -> dict[str, Entry]:
    """The rows of a table whose published names contain none of `parts`."""
    return {name: entry for name, entry in table.items() if not any(p in name for p in parts)}


PROJECTIONS: Table = {
    f"projections.{{}}.{kind}": Target(f"head.projections.{{}}.{kind}")
    for kind in ("weight", "bias")
}
"""Layers after the pooling or before a decoder, in the head of any family."""

PROJECTION_NORM: Table = linear({"projection_norm": "head.norm"})
"""The norm before the projections."""
