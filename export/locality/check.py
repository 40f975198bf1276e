"""Refuses a module that looks at its text in a way that its state does not repeat."""

import linecache
from collections.abc import Iterator
from pathlib import Path
from traceback import FrameSummary

import sympy
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram

from ortolan.export.locality.flow import Fault, Flow, Found, Sizes
from ortolan.export.locality.spans import name_of
from ortolan.export.locality.stub import PLACE, cut_graph, is_of_library
from ortolan.export.trace.module import twin_of
from ortolan.modeling.errors import ConfigError

TEXTS = 2
"""Of a batch that a graph is followed at."""

FEW = 7
"""Tokens of a short text; also of any, where a module reads its tokens one by one."""

EACH = 64
"""Up to here every number of tokens is tried against what a module asks about it."""

OTHER = 7919
"""For other sizes in a condition: one that no condition names."""

_FAULTS: dict[Fault, tuple[str, str]] = {
    "texts": (
        "mixes the texts of a batch",
        "Each text of a batch is computed as if it were alone: reduce over channels instead",
    ),
    "tokens": (
        "reads other tokens than its own",
        "A step of the bundle sees only its new tokens: use state.attend, state.convolve or "
        "state.extend, or continue a sum with state.recall and state.keep",
    ),
    "places": (
        "depends on a token's place in what it is shown",
        "A step of the bundle begins anywhere in a text: take places from state.positions(ids)",
    ),
}


def check_locality(module: nn.Module, *, context: int, takes_one: bool) -> bool:
    """Refuse a module that reaches across tokens or texts without its state.

    Every call of its state is cut out of its graph. What is left must be a function of one token
    and of what the state gives for it, whatever their values: at a whole context and at a few
    tokens, and without a branch on their number.

    Args:
        module: its parameters lie on `meta`, its buffers have their values.
        context: tokens that have to fit.
        takes_one: it reads its tokens one by one.

    Returns:
        Whether tokens are joined with what was recalled, which only the probes can confirm.

    Raises:
        ConfigError: it does; or torch cannot trace it.
    """
    name = type(module).__name__
    with FakeTensorMode(allow_non_fake_inputs=True):
        try:
            program = cut_graph(twin_of(module), tokens=FEW if takes_one else None)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{name}: expected a forward that torch.export can trace, got "
                f"{str(error).strip().partition(chr(10))[0][:200]}. Use tensor operations whose "
                "shapes follow from those of the ids."
            ) from error
    _check_branches(name, program, context)
    buffers = dict(module.named_buffers())
    joins = False
    lengths = [FEW] if takes_one else [min(context, FEW), min(context, _longest(program))]
    for tokens in dict.fromkeys(length for length in lengths if length > 1):
        flow = Flow(program, buffers, Sizes(TEXTS, tokens))
        for found in flow.faults():
            raise _refusal(name, found)
        joins = joins or flow.settles
    return joins


def _longest(program: ExportedProgram) -> int:
    """Tokens that a graph is good for: a table that is cut to their number has an end."""
    uppers = [limits.upper for limits in program.range_constraints.values()]
    return min((int(upper) for upper in uppers if isinstance(upper, sympy.Integer)), default=2**31)


def _refusal(name: str, found: Found) -> ConfigError:
    what, advice = _FAULTS[found.fault]
    return ConfigError(
        f"{name}: expected each token to be computed alone between calls of the state, got "
        f"{name_of(found.node.target)}{_place(found.node)}, which {what}. {advice}."
    )


def _place(node: fx.Node) -> str:
    """Where in the user's code a node comes from."""
    noted = (node.meta.get("custom") or {}).get(PLACE)
    if noted is None:
        return ""
    file, line, function = noted
    code = linecache.getline(file, line).strip()
    return f" in `{code}` ({Path(file).name}, line {line}, in {function})"


def _check_branches(name: str, program: ExportedProgram, context: int) -> None:
    """Refuse a module that asks for the number of tokens or texts, and is told otherwise later."""
    for condition, where in _conditions(program):
        others = dict.fromkeys(condition.free_symbols, sympy.Integer(OTHER))
        for symbol in condition.free_symbols:
            for number in _lengths(condition, context):
                if condition.xreplace(others | {symbol: sympy.Integer(number)}) == sympy.false:
                    raise ConfigError(
                        f"{name}: expected the same operations for any number of tokens and texts, "
                        f"got a branch on it ({where}). The bundle would take one side of it for "
                        "every step: leave it out, or depend on state.positions(ids)."
                    )


def _conditions(program: ExportedProgram) -> Iterator[tuple[sympy.Basic, str]]:
    """What the user's own lines asked about sizes, as it was answered."""
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
    yield from range(2, min(EACH, context) + 1)
    for each in sympy.preorder_traversal(condition):
        if isinstance(each, sympy.Integer):
            yield from (n for n in range(int(each) - 1, int(each) + 2) if 2 <= n <= context)
    yield context
