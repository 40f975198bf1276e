"""Refuses a module that reads anything without its state that a step of the bundle does not see."""

from collections.abc import Iterator
from pathlib import Path
from traceback import FrameSummary

import sympy
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram

from ortolan.export.locality.flow import Fault, Flow, Kind, Sizes, is_random_operator
from ortolan.export.locality.spans import name_of
from ortolan.export.locality.stub import cut_graph
from ortolan.export.trace.lines import is_of_library, line_of_node
from ortolan.export.trace.module import twin_of, untraceable
from ortolan.modeling.errors import ConfigError

ROWS = 2
"""Rows of the batch at which a graph is followed."""

FEW = 7
"""Tokens of a short chunk, and of any chunk of a module that reads its tokens one by one."""

EVERY = 64
"""Every number of tokens up to this is tried in the conditions that a module asks."""

OTHER = 7919
"""A size that no condition names."""

_ADVICE: dict[Kind, tuple[str, str]] = {
    "rows": (
        "mixes the rows of a batch",
        "Every row is computed as if it were alone: reduce over channels instead",
    ),
    "tokens": (
        "reads other tokens than its own",
        "A step of the bundle sees only its new tokens: use state.attend, state.convolve or "
        "state.extend, or continue a sum with state.recall and state.keep",
    ),
    "places": (
        "depends on a token's place in the chunk",
        "A step of the bundle begins anywhere in a sequence: use state.positions(ids)",
    ),
}


def check_locality(
    module: nn.Module, *, context: int, takes_one: bool, is_random: bool = False
) -> bool:
    """Refuse a module that reads other tokens or rows without its state.

    1. Trace the module with every call of its state cut out of the graph.
    2. Refuse branches on the number of tokens or rows.
    3. Follow the graph at a few tokens and at a whole context: whatever the ids are, each input
       of the state must be a function of one token and of what the state returned for it.

    Args:
        module: its parameters are on `meta`, its buffers have their values.
        context: tokens that have to fit.
        takes_one: whether it reads its tokens one by one.
        is_random: whether two calls computed different logits.

    Returns:
        Whether it joins tokens with a recalled state, which only the probes can confirm.
    """
    name = type(module).__name__
    with FakeTensorMode(allow_non_fake_inputs=True):
        try:
            program = cut_graph(twin_of(module), tokens=FEW if takes_one else None)
        except ConfigError:
            raise
        except Exception as error:
            raise untraceable(name, "torch.export", error) from error
    if is_random:
        raise _random_refusal(name, program)
    _check_branches(name, program, context)
    buffers = dict(module.named_buffers())
    joins = False
    lengths = [FEW] if takes_one else [min(context, FEW), min(context, _longest(program))]
    for tokens in dict.fromkeys(length for length in lengths if length > 1):
        flow = Flow(program, buffers, Sizes(ROWS, tokens))
        for fault in flow.faults():
            raise _refusal(name, fault)
        joins = joins or flow.settles
    return joins


def _longest(program: ExportedProgram) -> int:
    """Most tokens that the graph accepts; a table that is cut to their number sets a limit."""
    uppers = [limits.upper for limits in program.range_constraints.values()]
    return min((int(upper) for upper in uppers if isinstance(upper, sympy.Integer)), default=2**31)


def _refusal(name: str, fault: Fault) -> ConfigError:
    problem, advice = _ADVICE[fault.kind]
    return ConfigError(
        f"{name}: {name_of(fault.node.target)}{line_of_node(fault.node)} {problem} between calls "
        f"of the state. {advice}."
    )


def _random_refusal(name: str, program: ExportedProgram) -> ConfigError:
    """The error for a module whose calls are random, with the operator if the graph has one."""
    node = next((node for node in program.graph.nodes if is_random_operator(node.target)), None)
    operator = "" if node is None else f": {name_of(node.target)}{line_of_node(node)}"
    return ConfigError(
        f"{name}: the same ids give other logits in every call; forward is random{operator}. Leave "
        "noise out, and use dropout only while training: nn.Dropout, or "
        "F.dropout(x, p, training=self.training)."
    )


def _check_branches(name: str, program: ExportedProgram, context: int) -> None:
    """Refuse a branch on the number of tokens or rows that other numbers take differently."""
    for condition, where in _conditions(program):
        others = dict.fromkeys(condition.free_symbols, sympy.Integer(OTHER))
        for symbol in condition.free_symbols:
            for number in _lengths(condition, context):
                if condition.xreplace(others | {symbol: sympy.Integer(number)}) == sympy.false:
                    raise ConfigError(
                        f"{name}: a branch on the number of tokens or rows ({where}). The bundle "
                        "would take one side of it in every step: leave it out, or use "
                        "state.positions(ids)."
                    )


def _conditions(program: ExportedProgram) -> Iterator[tuple[sympy.Basic, str]]:
    """The conditions on sizes in the user's own lines, each in the form that held in the trace."""
    modes = (getattr(node.meta.get("val"), "fake_mode", None) for node in program.graph.nodes)
    mode = next((mode for mode in modes if mode is not None and mode.shape_env is not None), None)
    if mode is None:
        return
    for guard in mode.shape_env.guards:
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
