"""Self-attention in standard operators, for devices and tools without a kernel for it.

    q · kᵀ -> softcap -> + bias -> seen or never -> Softmax -> · v

Spec: com.microsoft.GroupQueryAttention, version 1 (onnxruntime, docs/ContribOperators.md); ai.onnx
Attention, TensorScatter and RotaryEmbedding, version 24, 24 and 23.

Shape letters: B batch, S new tokens, T keys, C cache capacity, H query heads, K key/value heads,
D head width, U value width, R rotated channels.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import onnx_ir as ir

from ortolan.export.passes.nodes import Insert

INPUTS = (
    *("query", "key", "value", "past_key", "past_value", "seqlens_k", "total"),
    *("cos", "sin", "position_ids", "attention_bias", "head_sink"),
)
"""Names of a node's inputs, in order. Nothing that is spelled out has the positions as an input."""

OUTPUTS = ("output", "present_key", "present_value")


class Added(NamedTuple):
    """Changes of the scores.

    Attributes:
        bias: added to them, `(B | 1, H | 1, S, T)`.
        seen: bool `(B | 1, 1, S | 1, T)`.
        sinks: scores of one more key, whose value is zero, `(H,)`.
    """

    bias: ir.Value | None
    seen: ir.Value | None
    sinks: ir.Value | None


class Tables(NamedTuple):
    """Cosines and sines `(P, R / 2)`, and the positions `(B, S)` to look up."""

    cos: ir.Value
    sin: ir.Value
    positions: ir.Value


class StandardAttention(ABC):
    """Spells out a GroupQueryAttention node.

    A subclass knows the facts of the node, such as the number of heads, as numbers or as values.
    """

    def __init__(self, new: Insert, node: ir.Node) -> None:
        self.new, self.node = new, node

    @abstractmethod
    def number(self, attribute: str) -> int | ir.Value:
        """An integer attribute of the node."""

    @abstractmethod
    def near(self, distance: ir.Value, seen: ir.Value) -> ir.Value:
        """The keys that are seen and that the window reaches."""

    @abstractmethod
    def rotated(self, x_BNSD: ir.Value, count: int | ir.Value, tables: Tables) -> ir.Value:
        """Heads turned by their positions."""

    @abstractmethod
    def attended(self, qkv: Sequence[ir.Value], added: Added) -> ir.Value:
        """Softmax attention `(B, H, S, U)`."""

    def scattered(self, past: ir.Value, x: ir.Value, start_B: ir.Value) -> ir.Value:
        """The cache `past` with the tokens of x from `start_B` on."""
        return self.new.TensorScatter(past, x, start_B, axis=2)

    def seen(self, positions: ir.Value, slots: ir.Value, last: ir.Value) -> ir.Value:
        """Which keys `(T,)` each token at `(B, S)` attends to, of those up to `last`, `(B,)`."""
        if self.node.attributes.get_int("causal", 1):
            return self.reached(positions, slots)
        return self.new.LessOrEqual(slots, self.new.Unsqueeze(last, [1, 2, 3]))

    def reached(self, positions: ir.Value, slots: ir.Value) -> ir.Value:
        """The keys up to each token, as far back as the window reaches."""
        distance = self.new.Sub(self.new.Unsqueeze(positions, [1, 3]), slots)
        return self.near(distance, self.new.GreaterOrEqual(distance, 0))

    def outputs(self, inputs: Sequence[ir.Value | None]) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Insert everything; return the output `(B, S, H * D)` and all keys and values.

        A step with as many new tokens as its longest row has in all is a prompt: every row starts
        at 0. A node with a cache but a single output reads what another layer has extended.
        """
        new, (query, key, value, past_key, past_value, last, total) = self.new, inputs[:7]
        cos, sin, _, bias, sinks = padded(inputs, len(INPUTS))[7:]
        if query is None or last is None or total is None:
            raise TypeError(f"{self.node.name}: expected queries and lengths")
        last = new.Cast(last, to=ir.DataType.INT64)
        count = new.Squeeze(new.Shape(query, start=1, end=2))
        steps = new.Range(0, count, 1)
        if past_key is None or past_value is None:
            positions = new.Expand(steps, new.Shape(query, start=0, end=2))
        else:
            total = new.Squeeze(new.Cast(total, to=ir.DataType.INT64))
            is_prompt = new.Equal(total, count)
            start_B = new.Where(is_prompt, 0, new.Sub(new.Add(last, 1), count))
            positions = new.Add(new.Unsqueeze(start_B, [1]), steps)
        tables = None if cos is None or sin is None else Tables(cos, sin, positions)
        if past_key is not None and past_value is not None and len(self.node.outputs) == 1:
            q, k, v = self._split(query, self.number("num_heads")), past_key, past_value
            q = self._turned(q, "num_heads", tables)
        else:
            q, k, v = self._heads(query, key, value)
            q, k = self._turned(q, "num_heads", tables), self._turned(k, "kv_num_heads", tables)
            if past_key is not None and past_value is not None:
                k = self.scattered(past_key, k, start_B)
                v = self.scattered(past_value, v, start_B)
        presents, slots = (k, v), steps
        if past_key is not None and bias is not None:
            # A bias has as many slots as the longest row.
            k, v = (new.Slice(x, [0], new.Unsqueeze(total, [0]), [2]) for x in presents)
            slots = new.Range(0, total, 1)
        elif past_key is not None:
            slots = new.Range(0, new.Squeeze(new.Shape(past_key, start=2, end=3)), 1)
        seen = self.seen(positions, slots, last)
        out_BHSD = self.attended((q, k, v), Added(bias, seen, sinks))
        out_BSHD = new.Transpose(out_BHSD, perm=[0, 2, 1, 3])
        return new.Reshape(out_BSHD, [0, 0, -1]), *presents

    def _heads(
        self, query: ir.Value, key: ir.Value | None, value: ir.Value | None
    ) -> Sequence[ir.Value]:
        """Queries, keys and values by heads, from three values or from one."""
        counts = [self.number(name) for name in ("num_heads", "kv_num_heads", "kv_num_heads")]
        if key is not None and value is not None:
            return [self._split(x, n) for x, n in zip((query, key, value), counts, strict=True)]
        joined = self._split(query, self._sum(counts))
        return self.new.several("Split", 3, joined, self._sizes(*counts), axis=1)

    def _split(self, x: ir.Value, count: int | ir.Value) -> ir.Value:
        """`(B, S, N * D)` to `(B, N, S, D)`."""
        apart = self.new.Reshape(x, self._sizes(0, 0, count, -1))
        return self.new.Transpose(apart, perm=[0, 2, 1, 3])

    def _sizes(self, *sizes: int | ir.Value) -> list[int] | ir.Value:
        """A vector of numbers."""
        numbers = [size for size in sizes if isinstance(size, int)]
        if len(numbers) == len(sizes):
            return numbers
        vectors = [
            [size] if isinstance(size, int) else self.new.Unsqueeze(size, [0]) for size in sizes
        ]
        return self.new.Concat(*vectors, axis=0)

    def _sum(self, sizes: Sequence[int | ir.Value]) -> int | ir.Value:
        numbers = [size for size in sizes if isinstance(size, int)]
        return sum(numbers) if len(numbers) == len(sizes) else reduce(self.new.Add, sizes)

    def _turned(self, x_BNSD: ir.Value, count: str, tables: Tables | None) -> ir.Value:
        return x_BNSD if tables is None else self.rotated(x_BNSD, self.number(count), tables)


def padded(inputs: Sequence[ir.Value | None], count: int) -> list[ir.Value | None]:
    """As many inputs as the operator may have."""
    return [*inputs, *[None] * (count - len(inputs))]
