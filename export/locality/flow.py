"""Follows rows and tokens through a traced graph, from the ids to the inputs of its state."""

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import sympy
import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from ortolan.export.locality.rules import apply
from ortolan.export.locality.spans import (
    OPAQUE,
    PLACE,
    Shape,
    Span,
    Value,
    along,
    constant,
    differs,
    fitted,
    joined,
    name_of,
    unknown,
    values_in,
)
from ortolan.export.locality.stub import CALLS
from ortolan.export.trace.lines import line_of_node
from ortolan.modeling.errors import ConfigError

FOLDED = 1 << 22
"""Largest number of elements of a constant that is computed."""

Kind = Literal["rows", "tokens", "places"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A state's input, or the logits, that depends on more than one token of one row.

    Attributes:
        node: where that begins.
        kind: whether it depends on other rows, other tokens, or its place in the chunk.
    """

    node: fx.Node
    kind: Kind


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the ids to follow a graph at."""

    rows: int
    tokens: int


class Flow:
    """The value of every node of a graph.

    Args:
        program: from `cut_graph`.
        buffers: the module's buffers by name.
        sizes: sizes of the ids.

    Attributes:
        settles: whether tokens are joined with a recalled state, which only numbers can confirm.
    """

    def __init__(
        self, program: ExportedProgram, buffers: Mapping[str, Tensor], sizes: Sizes
    ) -> None:
        self._program, self._buffers, self._sizes = program, buffers, sizes
        self._values: dict[fx.Node, Value | list[Value]] = {}
        self._symbols = _symbols(program, sizes)
        self._kept = _kept(program.graph)
        self.settles = False
        for node in program.graph.nodes:
            if node.op in ("placeholder", "call_function"):
                value = self._value(node)
                if value is not None:
                    self._values[node] = value

    def faults(self) -> Iterator[Fault]:
        """The fault of every state's input that has one."""
        for node in _state_calls(self._program.graph):
            call = str(node.args[3])
            if call in ("positions", "recall"):
                continue
            axes = CALLS[call.partition(" ")[0]].inputs
            for taken in node.args[0]:  # type: ignore[union-attr]
                value = self._values.get(taken)  # type: ignore[arg-type]
                if not isinstance(value, Value):
                    continue
                kind = self._fault(value, *axes)
                if kind is not None:
                    yield Fault(self._origin(taken, kind), kind)  # type: ignore[arg-type]

    # --- values ---------------------------------------------------------------------------------

    def _value(self, node: fx.Node) -> Value | list[Value] | None:
        if node.op == "placeholder":
            return self._input(node)
        meta: Any = node.meta.get("val")
        if node.target is operator.getitem:
            source = self._values.get(node.args[0])  # type: ignore[arg-type]
            if isinstance(source, list):
                return source[node.args[1]]  # type: ignore[index]
            return None if source is None else replace(source, shape=self._shape(meta))
        outputs = meta if isinstance(meta, (list, tuple)) else [meta]
        first = next((out for out in outputs if isinstance(out, Tensor)), None)
        if first is None:
            return None
        shape = self._shape(first)
        if name_of(node.target) == "state_call":
            return self._state_output(str(node.args[3]), shape)
        arguments = self._arguments(node)
        known = self._folded(node, arguments)
        if known is not None:
            return constant(known)
        values = values_in(arguments)
        clear = [value for value in values if OPAQUE not in value.spent]
        if _is_open(first) or name_of(node.target) == "nonzero":
            return unknown(shape)
        if len(clear) < len(values):
            return joined(clear, shape) if clear else unknown(shape)
        try:
            out = apply(node.target, arguments, shape)
        except (IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the export cannot follow {name_of(node.target)}{line_of_node(node)} from token "
                "to token. Compute the same with other operators."
            ) from error
        if isinstance(out, list):
            return [self._settled(node, value, values) for value in out]
        return self._settled(node, out, values)

    def _input(self, node: fx.Node) -> Value:
        """Ids, a parameter or a buffer."""
        shape = self._shape(node.meta["val"])
        signature = self._program.graph_signature
        buffer = signature.inputs_to_buffers.get(node.name)
        if buffer is not None:
            numbers = self._buffers.get(buffer.partition(".")[2])
            if numbers is not None and numbers.numel() <= FOLDED and not numbers.is_meta:
                return constant(numbers.detach().cpu())
        if node.name in signature.user_inputs:
            return Value(shape=shape, rows=along(0, shape), tokens=along(1, shape))
        lifted = signature.inputs_to_lifted_tensor_constants.get(node.name)
        if lifted is not None:
            numbers = self._program.constants.get(lifted)
            if isinstance(numbers, Tensor) and type(numbers) is Tensor:
                return constant(numbers.detach().cpu())
        return Value(shape=shape, places=differs(shape))

    def _state_output(self, call: str, shape: Shape) -> Value:
        name, _, state = call.partition(" ")
        rows, tokens = CALLS[name].output
        return Value(
            shape=shape,
            rows=along(rows, shape) if name not in ("keep", "logits") else None,
            tokens=None if tokens is None or name == "logits" else along(tokens, shape),
            fresh=frozenset([state]) if name == "recall" else frozenset(),
        )

    def _arguments(self, node: fx.Node) -> dict[str, Any]:
        """A node's arguments by name, with values for tensors and numbers for symbols."""

        def resolved(argument: Any) -> Any:
            if isinstance(argument, fx.Node):
                argument = self._values.get(argument, argument.meta.get("val"))
            return self._number(argument)

        inputs: Any = fx.node.map_aggregate((node.args, node.kwargs), resolved)
        args, kwargs = inputs
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            return dict(zip(map(str, range(len(args))), args, strict=True)) | dict(kwargs)
        names: list[str] = [argument.name for argument in schema.arguments]
        defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        named: dict[str, Any] = defaults | dict(zip(names, args, strict=False)) | kwargs
        return {name: named[name] for name in names if name in named}

    def _folded(self, node: fx.Node, arguments: Mapping[str, Any]) -> Tensor | None:
        """The value of a node that depends only on constants, if it is small."""
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            return None
        if is_random_operator(target):
            return None
        if any(value.known is None for value in values_in(arguments)):
            return None
        if isinstance(node.meta["val"], (list, tuple)):
            return None
        if math.prod(self._shape(node.meta["val"])) > FOLDED:
            return None
        known = {name: _known(argument) for name, argument in arguments.items()}
        names = [argument.name for argument in target._schema.arguments if not argument.kwarg_only]
        args = [known.pop(name) for name in names if name in known]
        if "device" in known:
            known["device"] = torch.device("cpu")
        try:
            out = target(*args, **known)
        except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError):
            return None
        return out if isinstance(out, Tensor) else None

    def _settled(self, node: fx.Node, value: Value, inputs: Sequence[Value]) -> Value:
        """Excuse tokens that are joined with earlier ones in order to continue a state.

        A value that joins its tokens with a recalled state (`x.cumsum(1) + state.recall(...)`)
        counts as coming from the latest of them. So do tokens joined on the way to where the same
        state is kept. Whether the sum really continues the state, the probes of the export show.
        """
        tokens = value.tokens
        continues = value.fresh or any(node in self._kept.get(name, ()) for name in value.spent)
        if tokens is None or not continues or not tokens.has_several:
            return value
        self.settles = True
        last = torch.where(tokens.last < 0, tokens.first, tokens.last)
        settled = replace(value, tokens=Span(last, tokens.last))
        if self._is_off(settled, "tokens"):
            # A matrix hides which tokens it leaves out. The recalled side has those of the result.
            sides = [v.tokens for v in inputs if v.fresh and v.tokens is not None]
            sides = [span for span in sides if not span.has_several]
            settled = replace(settled, tokens=fitted(sides[0], value.shape)) if sides else settled
        if _has_place(tokens):
            return settled  # weighed by its place in the chunk, and not yet put after the state
        return replace(settled, fresh=frozenset(), spent=value.fresh | value.spent)

    def _shape(self, tensor: Tensor) -> Shape:
        return tuple(int(self._number(size)) for size in tensor.shape)

    def _number(self, value: Any) -> Any:
        """A symbol of the trace as a number at these sizes; anything else as it is."""
        if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return value
        expression = value.node.expr.xreplace(self._symbols)
        rest = dict.fromkeys(expression.free_symbols, sympy.Integer(self._sizes.tokens))
        return int(expression.xreplace(rest))

    # --- faults -----------------------------------------------------------------------------------

    def _fault(self, value: Value, row_axis: int, token_axis: int | None) -> Kind | None:
        if OPAQUE in value.spent:
            return None
        if not _is_at(value.rows, row_axis, value.shape, causal=False):
            return "rows"
        if token_axis is None:
            return None
        if value.tokens is None:
            places = value.places
            return "places" if places is not None and places.first.shape[token_axis] > 1 else None
        if _has_place(value.tokens) and not value.fresh:
            return "places"
        is_at_own = _is_at(value.tokens, token_axis, value.shape, causal=bool(value.fresh))
        return None if is_at_own else "tokens"

    def _origin(self, node: fx.Node, kind: Kind) -> fx.Node:
        """The first node on the way to this one that has its fault."""
        while True:
            bad = next((n for n in node.all_input_nodes if self._is_bad(n, kind)), None)
            if bad is None:
                return self._counter(node) if kind == "places" else node
            node = bad

    def _counter(self, node: fx.Node) -> fx.Node:
        """The first operator of what differs by place, such as `arange`, where it joins tokens."""
        while True:
            loose = next((n for n in node.all_input_nodes if self._is_loose(n)), None)
            if loose is None:
                return node
            node = loose

    def _is_loose(self, node: fx.Node) -> bool:
        """Whether an operator's numbers come from no token, and differ along an axis of tokens."""
        value = self._values.get(node)
        if node.op != "call_function" or not isinstance(value, Value):
            return False
        if value.tokens is not None or value.places is None:
            return False
        return self._sizes.tokens in value.places.first.shape

    def _is_bad(self, node: fx.Node, kind: Kind) -> bool:
        value = self._values.get(node)
        values = value if isinstance(value, list) else [] if value is None else [value]
        return any(self._is_off(value, kind) for value in values)

    def _is_off(self, value: Value, kind: Kind) -> bool:
        """Whether numbers do not come from the rows or tokens in their order."""
        if kind == "places":
            return value.tokens is not None and _has_place(value.tokens)
        span = value.rows if kind == "rows" else value.tokens
        size = self._sizes.rows if kind == "rows" else self._sizes.tokens
        if span is None:
            return False
        entries = span.last.reshape(-1)
        if span.has_several or entries.numel() % size:
            return True
        order = torch.arange(size, dtype=torch.int32)
        return not (
            bool((entries.reshape(-1, size) == order).all())
            or bool((entries.reshape(size, -1) == order[:, None]).all())
        )


def is_random_operator(target: Any) -> bool:
    """Whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def _has_place(span: Span) -> bool:
    """Whether some number depends on its place in the chunk."""
    return bool((span.first == PLACE).any())


def _is_at(span: Span | None, axis: int, shape: Shape, *, causal: bool) -> bool:
    """Whether every number comes from its own place on an axis, or from nothing.

    Args:
        span: None if all come from nothing.
        axis: of rows or tokens.
        shape: of the tensor.
        causal: whether earlier places count as well.
    """
    if span is None:
        return True
    own = along(axis, shape).first
    is_none = span.first > span.last
    is_own = span.last <= own if causal else (span.first == own) & (span.last == own)
    return bool((is_none | is_own).all())


def _symbols(program: ExportedProgram, sizes: Sizes) -> dict[Any, Any]:
    """The symbols of the sizes of the ids, and their values."""
    ids = next(
        node
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in program.graph_signature.user_inputs
    )
    return {
        size.node.expr: sympy.Integer(number)
        for size, number in zip(ids.meta["val"].shape, (sizes.rows, sizes.tokens), strict=True)
        if isinstance(size, torch.SymInt)
    }


def _state_calls(graph: fx.Graph) -> Iterator[fx.Node]:
    for node in graph.nodes:
        if node.op == "call_function" and name_of(node.target) == "state_call":
            yield node


def _kept(graph: fx.Graph) -> dict[str, set[fx.Node]]:
    """All nodes that enter what each state keeps, by the state's name."""
    kept: dict[str, set[fx.Node]] = {}
    for call in _state_calls(graph):
        name, _, state = str(call.args[3]).partition(" ")
        if name == "keep":
            waiting, seen = [call], kept.setdefault(state, set())
            while waiting:
                node = waiting.pop()
                if node not in seen:
                    seen.add(node)
                    waiting += node.all_input_nodes
    return kept


def _is_open(tensor: Tensor) -> bool:
    """Whether a size depends on the numbers of a tensor, as that of `nonzero` does."""
    return any(
        isinstance(size, torch.SymInt)
        and any(str(symbol).startswith("u") for symbol in size.node.expr.free_symbols)
        for size in tensor.shape
    )


def _known(argument: Any) -> Any:
    if isinstance(argument, Value):
        return argument.known
    if isinstance(argument, (list, tuple)):
        return [_known(part) for part in argument]
    return argument
