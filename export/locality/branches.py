"""Finds branches on the number of tokens or rows, which a graph would take one side of."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from traceback import FrameSummary
from typing import Any

import sympy
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from ortolan.export.locality.standin import Numbers, StandIn
from ortolan.export.trace.lines import is_of_library
from ortolan.export.trace.module import twin_of, untraceable
from ortolan.modeling.errors import ConfigError, ModelingError

EVERY = 64
"""Every number of tokens up to this is tried in the conditions that a module asks."""

OTHER = 7919
"""A size that no condition names."""

ROWS, TOKENS = 3, 4
"""Sizes at which conditions are asked."""


class _Blank(StandIn):
    """A state without numbers, for a forward that has none."""

    def _extend(self, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x.new_ones(1, x.shape[1], x.shape[1], dtype=torch.bool)

    def _output(
        self, call: str, inputs: Mapping[str, Tensor | None], like: Tensor, *, axis: int
    ) -> Tensor:
        return torch.empty_like(like)


def check_branches(module: nn.Module, *, context: int, takes_one: bool) -> None:
    """Refuse a branch on the number of tokens or rows that other numbers take differently.

    The module's parameters are on `meta`, its buffers have their values. With `takes_one`, it reads
    its tokens one by one, so that their number does not vary.
    """
    name, shapes = type(module).__name__, ShapeEnv()
    zeros = torch.zeros(ROWS, min(TOKENS, context), dtype=torch.int64)
    sizes = [DimDynamic.DYNAMIC, DimDynamic.STATIC if takes_one else DimDynamic.DYNAMIC]
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    ids = mode.from_tensor(zeros, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))
    shape: tuple[Any, ...] = tuple(ids.shape)
    # A size that the module reads as a number is one from then on.
    own = {size.node.expr for size in shape if isinstance(size, torch.SymInt)}
    with mode, torch.no_grad():
        try:
            twin_of(module)(ids, _Blank(ids, Numbers(0), {}))
        except ModelingError:
            raise
        except Exception as error:
            raise untraceable(name, "a forward of any number of ids", error) from error
    hints = {
        symbol: number for symbol, number in shapes.backed_var_to_val.items() if symbol not in own
    }
    for condition, where in _conditions(shapes):
        held = condition.xreplace(hints)
        others = dict.fromkeys(held.free_symbols, sympy.Integer(OTHER))
        for symbol in held.free_symbols:
            for number in _lengths(held, context):
                if held.xreplace(others | {symbol: sympy.Integer(number)}) == sympy.false:
                    raise ConfigError(
                        f"{name}: a branch on the number of tokens or rows ({where}). The bundle "
                        "would take one side of it in every step: leave it out, or use "
                        "state.positions(ids)."
                    )


def _conditions(shapes: ShapeEnv) -> Iterator[tuple[sympy.Basic, str]]:
    """The conditions on sizes in the user's own lines, each in the form that held."""
    for guard in shapes.guards:
        frame = guard.sloc.framework_loc
        if isinstance(frame, FrameSummary) and not is_of_library(frame.filename):
            yield guard.expr, f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}"


def _lengths(condition: sympy.Basic, context: int) -> Iterator[int]:
    """Numbers of tokens to try: small ones, the context, and those that a condition names."""
    yield from range(2, min(EVERY, context) + 1)
    for term in sympy.preorder_traversal(condition):
        if isinstance(term, sympy.Integer):
            yield from (n for n in range(int(term) - 1, int(term) + 2) if 2 <= n <= context)
    yield context
