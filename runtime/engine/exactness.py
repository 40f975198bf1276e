"""Exactness: which calls of the model compute the same for a row, whatever else they compute.

An exact runner computes the same for a row, to the bit, whatever the other rows hold and however
its prompt is cut (docs/adr/0021). So it keeps to these rules:

    rows of a step are even      products of low-bit weights take rows in pairs, and sum a last odd
                                 row in another order (onnxruntime 1.31 with AVX-512)
    tokens of a chunk are even   for the same reason; the last may be a dummy, which the next token
                                 overwrites
    logits are even              in number of positions, for the same reason
    chunks end at edges          where sums of scores change their order (`score_edges`)
    chunks end at the grid       at multiples of `GRID`, if even parts differ, too

Even parts differ where one scale rounds the activations of a whole call; where long chunks round
them and short ones, by another graph, do not; and where a state is replaced: such a part cannot be
padded, so its number of tokens may be odd. Graphs that take one token at a time do not care.

A mixture of experts cannot be exact: the tokens of a call share a product per expert.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortolan.runtime.engine.attention_kernels import GRID

if TYPE_CHECKING:
    from ortolan.runtime.bundle.manifest import Manifest, State

_SCALED_CALL = "com.microsoft::DynamicQuantizeMatMul"
"""Rounds the activations of a call on one scale; in graphs of other exporters."""

_INTEGERS = "com.microsoft::MatMulIntegerToFloat"
"""A product of 8-bit integers, in graphs for long chunks of a prompt."""

_PAIRED = frozenset({"com.microsoft::MatMulNBits", "ai.onnx::DequantizeLinear"})
"""Low-bit products; onnxruntime turns the second into the first."""

_EXPERTS = frozenset({"com.microsoft::MoE", "com.microsoft::QMoE"})

_AT_ONCE = 128
"""Channels that a product adds up at a time, for at least as many keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """The rules of one bundle.

    Attributes:
        rows_multiple: the number of rows of a step must be a multiple of this.
        mixes_rows: whether rows of a batch change each other, as tokens that share an expert do.
        depends_on_chunks: whether results depend on where a prompt is cut, even into even parts.
        shares_scale: whether one scale rounds the activations of a whole call.
        edges: positions that no chunk crosses.
    """

    rows_multiple: int
    mixes_rows: bool
    depends_on_chunks: bool
    shares_scale: bool
    edges: tuple[int, ...]

    @classmethod
    def of(
        cls, manifest: "Manifest", operators: Collection[str], *, has_prefill: bool
    ) -> "Exactness":
        """The rules of a bundle with these operators, and a graph of its own for prefill or not."""
        shares_scale = _SCALED_CALL in operators
        is_replaced = any(state.update == "replace" for state in manifest.states)
        is_mixed = has_prefill and _INTEGERS in operators
        return cls(
            rows_multiple=1 if _PAIRED.isdisjoint(operators) else 2,
            mixes_rows=not _EXPERTS.isdisjoint(operators),
            depends_on_chunks=not manifest.takes_one and (is_replaced or is_mixed or shares_scale),
            shares_scale=shares_scale,
            edges=score_edges(manifest.states),
        )

    @property
    def tokens_multiple(self) -> int:
        """Prompts may continue from multiples of this many tokens: 1 if chunks do not matter."""
        return GRID if self.depends_on_chunks or self.mixes_rows else 1

    def chunk_tokens(self, length: int, *, most: int, chunk: int) -> int:
        """Tokens of the next chunk of a row: at most `most`, or up to the next multiple of `chunk`.

        Cut by position alone, whatever else runs and whatever the caller asked for.
        """
        most -= most % 2
        if self.tokens_multiple > 1:
            return min(most, chunk - length % chunk)
        edge = next((edge for edge in self.edges if edge > length), length + most)
        # an odd number before an edge would need a dummy token behind it
        return 1 if (edge - length) % 2 else min(most, edge - length)


def score_edges(states: "Iterable[State]") -> tuple[int, ...]:
    """Return the numbers of tokens in a row at which the sums of scores change their order.

    The products of queries and keys take 128 channels at a time, but twice as many where a call
    sees at most 64 tokens of its row, and so on (MLAS, `MlasSgemmOperation`). Heads of up to 128
    channels have no such edges.
    """
    grown = (state.shape for state in states if state.update == "append")
    sizes = (shape[-1] for shape in grown if len(shape) == 4)
    channels = max((size for size in sizes if isinstance(size, int)), default=1)
    edges, at_once, tokens = list[int](), _AT_ONCE, _AT_ONCE // 2
    while channels > at_once and tokens > 1:
        edges.insert(0, tokens)
        at_once, tokens = 2 * at_once, tokens // 2
    return tuple(edges)
