"""Cuts every call of its state out of a module's graph, and makes what it returns an input.

Shape letters: B batch, S new tokens, T tokens so far.
"""

import contextlib
import io
import logging
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx.traceback import preserve_node_meta

from ortolan.export.trace.lines import Annotated
from ortolan.modeling.config import AttentionConfig
from ortolan.modeling.layers.lowering import Rotary
from ortolan.modeling.layers.ops import Heads
from ortolan.modeling.state import State

PAST = 5
"""Tokens before the new ones, so that T differs from S."""

_LIBRARY = torch.library.Library("ortolan", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "state_call(Tensor[] inputs, SymInt[] shape, ScalarType dtype, str call) -> Tensor"
)


@torch.library.register_fake("ortolan::state_call", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _fake(inputs: Sequence[Tensor], shape: Sequence[int], dtype: torch.dtype, call: str) -> Tensor:
    return inputs[0].new_empty(tuple(shape), dtype=dtype)


class Call(NamedTuple):
    """Axes of rows and of tokens in the tensors of a state's call; None if there is none.

    Attributes:
        inputs: of every input.
        output: of the output.
    """

    inputs: tuple[int, int | None]
    output: tuple[int, int | None]


CALLS = {
    "positions": Call((0, 1), (0, 1)),
    "attend": Call((0, 1), (0, 1)),
    "convolve": Call((0, 2), (0, 2)),
    "recur": Call((0, 2), (0, 2)),
    "extend": Call((0, 1), (0, None)),
    "seen": Call((0, 1), (0, 1)),
    "recall": Call((0, None), (0, None)),
    "keep": Call((0, None), (0, None)),
    "logits": Call((0, 1), (0, 1)),
}
"""The calls of a state by name. In the graph, the name of the state follows after a space."""


def state_call(
    inputs: Sequence[Tensor], shape: Sequence[int], dtype: torch.dtype, call: str
) -> Tensor:
    """An opaque node: of its output only the shape is known."""
    out: Tensor = torch.ops.ortolan.state_call(list(inputs), list(shape), dtype, call)
    return out


class CutState(State):
    """A state cut out of its module: `_output` stands in for what it computes from new tokens."""

    def convolve(self, name: str, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Any vectors."""
        return self._output("convolve", [x], x)

    def recur(
        self,
        name: str,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        decay: Tensor | None = None,
        rate: Tensor | None = None,
        scale: float = 1.0,
    ) -> Tensor:
        """Any vectors."""
        others = [part for part in (decay, rate) if part is not None]
        return self._output("recur", [query, key, value, *others], value)

    def _attend(
        self,
        layer: int,
        heads: Heads,
        rotary: Rotary | None,
        sinks: Tensor | None,
        spec: AttentionConfig,
    ) -> Tensor:
        return self._output("attend", [*heads], heads.query)

    def _attend_shared(
        self,
        layer: int,
        query_BSX: Tensor,
        rotary: Rotary | None,
        sinks: Tensor | None,
        spec: AttentionConfig,
    ) -> Tensor:
        return self._output("attend", [query_BSX], query_BSX)

    @abstractmethod
    def _output(self, call: str, inputs: Sequence[Tensor], like: Tensor) -> Tensor:
        """Take the inputs of a call in `CALLS`; return numbers of the shape of `like`."""


class StubState(CutState):
    """A state whose calls are opaque nodes.

    Attributes:
        ends: outputs that nothing reads, which would otherwise drop out of the graph.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[Tensor] = []

    def positions(self, ids: Tensor) -> Tensor:
        """Any positions."""
        return state_call([ids], ids.shape, torch.int64, "positions")

    def _recall(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Any numbers for each row."""
        return state_call([like], [like.shape[0], *shape], like.dtype, f"recall {name}")

    def _keep(self, name: str, value: Tensor) -> None:
        """An end of the graph."""
        self.ends.append(state_call([value], [1], value.dtype, f"keep {name}"))

    def _extend(self, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """Any vectors `(B, T, E)`, and which of them each token may see `(B, S, T)`."""
        rows, tokens, width = x.shape
        so_far = tokens + PAST
        vectors = state_call([x], [rows, so_far, width], x.dtype, f"extend {name}")
        return vectors, state_call([x], [rows, tokens, so_far], torch.bool, "seen")

    def _output(self, call: str, inputs: Sequence[Tensor], like: Tensor) -> Tensor:
        return state_call(inputs, like.shape, like.dtype, call)


class _Entry(nn.Module):
    """A module over a stub, from ids to every end of the graph."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> list[Tensor]:
        state = StubState()
        with Annotated():
            logits = self.model(ids, state)
        return [state_call([logits], [1], logits.dtype, "logits"), *state.ends]


def cut_graph(module: nn.Module, *, tokens: int | None) -> ExportedProgram:
    """Trace a module whose parameters and buffers are fake, in their mode.

    Args:
        module: with a `forward(ids, state)`.
        tokens: number of new tokens, if it is fixed.
    """
    axes = {0: Dim.DYNAMIC} | ({} if tokens else {1: Dim.DYNAMIC})
    ids = torch.zeros(3, tokens or 4, dtype=torch.int64)
    with _quiet(), torch.no_grad(), preserve_node_meta():
        program = torch.export.export(
            _Entry(module).eval(), (ids,), dynamic_shapes={"ids": axes}, strict=False
        )
        decomposed: ExportedProgram = program.run_decompositions()
        return decomposed


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
