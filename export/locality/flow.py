"""Follows tokens and texts through a traced graph, from the ids to what its state takes."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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

FOLDED = 1 << 22
"""Most numbers of a constant that is computed."""

Fault = str


@dataclass(frozen=True, slots=True)
class Found:
    """Something that a state takes, or the logits, reaches further than one token of one text.

    Attributes:
        node: where that begins.
        fault: `texts`, `places` or `tokens`.
    """

    node: fx.Node
    fault: Fault


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes to follow a graph at."""

    texts: int
    tokens: int


class Flow:
    """The values of every node of a graph at some sizes.

    Args:
        program: of `cut_graph`.
        buffers: the numbers of buffers, by name.
        sizes: of the ids.
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
                made = self._value(node)
                if made is not None:
                    self._values[node] = made

    def faults(self) -> Iterator[Found]:
        """What is wrong with each thing that a state takes."""
        for node in self._program.graph.nodes:
            if node.op != "call_function" or name_of(node.target) != "state_call":
                continue
            call = CALLS[str(node.args[3]).partition(" ")[0]].taken
            if str(node.args[3]) in ("positions", "recall"):
                continue
            for taken in node.args[0]:
                value = self._values.get(taken)
                if not isinstance(value, Value):
                    continue
                fault = self._fault(value, *call)
                if fault is not None:
                    yield Found(self._origin(taken, fault), fault)

    # --- values ---------------------------------------------------------------------------------

    def _value(self, node: fx.Node) -> Value | list[Value] | None:
        if node.op == "placeholder":
            return self._given(node)
        meta: Any = node.meta.get("val")
        if node.target is operator.getitem:
            source = self._values.get(node.args[0])  # type: ignore[arg-type]
            if isinstance(source, list):
                return source[node.args[1]]  # type: ignore[index]
            return None if source is None else replace(source, shape=self._shape(meta))
        first = (
            next((each for each in meta if isinstance(each, Tensor)), None)
            if isinstance(meta, (list, tuple))
            else meta
        )
        if not isinstance(first, Tensor):
            return None
        shape = self._shape(first)
        if name_of(node.target) == "state_call":
            return self._called(str(node.args[3]), shape)
        arguments = self._arguments(node)
        known = self._folded(node, arguments)
        if known is not None:
            return constant(known)
        is_open = _is_open(first) or name_of(node.target) == "nonzero"
        values = values_in(arguments)
        if is_open or any(OPAQUE in each.spent for each in values):
            rest = [each for each in values if OPAQUE not in each.spent]
            if is_open or not rest:
                return unknown(shape)
            return joined(rest, shape)
        made = apply(node.target, arguments, shape)
        if isinstance(made, list):
            return [self._settled(node, each, values) for each in made]
        return self._settled(node, made, values)

    def _given(self, node: fx.Node) -> Value:
        """Ids, a parameter or a buffer."""
        shape = self._shape(node.meta["val"])
        signature = self._program.graph_signature
        buffer = signature.inputs_to_buffers.get(node.name)
        if buffer is not None:
            numbers = self._buffers.get(buffer.partition(".")[2])
            if numbers is not None and numbers.numel() <= FOLDED and not numbers.is_meta:
                return constant(numbers.detach().cpu())
        if node.name in signature.user_inputs:
            return Value(shape=shape, texts=along(0, shape), tokens=along(1, shape))
        lifted = signature.inputs_to_lifted_tensor_constants.get(node.name)
        if lifted is not None:
            numbers = self._program.constants.get(lifted)
            if isinstance(numbers, Tensor) and type(numbers) is Tensor:
                return constant(numbers.detach().cpu())
        return Value(shape=shape, places=differs(shape))

    def _called(self, call: str, shape: Shape) -> Value:
        name, _, state = call.partition(" ")
        texts, tokens = CALLS[name].given
        return Value(
            shape=shape,
            texts=along(texts, shape) if name not in ("keep", "logits") else None,
            tokens=None if tokens is None or name == "logits" else along(tokens, shape),
            fresh=frozenset([state]) if name == "recall" else frozenset(),
        )

    def _arguments(self, node: fx.Node) -> dict[str, Any]:
        given = fx.node.map_arg(
            (node.args, node.kwargs),
            lambda each: self._values.get(each, self._number(each.meta.get("val"))),
        )
        args, kwargs = _numbers(given, self._number)
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            return dict(zip(map(str, range(len(args))), args, strict=True)) | dict(kwargs)
        names: list[str] = [argument.name for argument in schema.arguments]
        defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        named: dict[str, Any] = defaults | dict(zip(names, args, strict=False)) | kwargs
        ordered: dict[str, Any] = {name: named[name] for name in names if name in named}
        return ordered

    def _folded(self, node: fx.Node, arguments: Mapping[str, Any]) -> Tensor | None:
        """What a node computes of constants alone, if that is little."""
        tags = getattr(node.target, "tags", ())
        values = values_in(arguments)
        if torch.Tag.nondeterministic_seeded in tags or not isinstance(
            node.target, torch._ops.OpOverload
        ):
            return None
        if any(each.known is None for each in values) or isinstance(
            node.meta["val"], (list, tuple)
        ):
            return None
        count = 1
        for size in self._shape(node.meta["val"]):
            count *= size
        if count > FOLDED:
            return None
        given = {name: _known(argument) for name, argument in arguments.items()}
        names = [each.name for each in node.target._schema.arguments if not each.kwarg_only]
        args = [given.pop(name) for name in names if name in given]
        if "device" in given:
            given["device"] = torch.device("cpu")
        try:
            out = node.target(*args, **given)
        except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError):
            return None
        return out if isinstance(out, Tensor) else None

    def _settled(self, node: fx.Node, value: Value, beside: Sequence[Value]) -> Value:
        """Tokens joined with those before them by a state that was recalled are the latest's own.

        So are those joined on the way to where the same state is kept.
        """
        tokens = value.tokens
        excused = value.fresh or any(node in self._kept.get(name, ()) for name in value.spent)
        if tokens is None or not excused or not tokens.has_several:
            return value
        self.settles = True
        last = torch.where(tokens.last < 0, tokens.first, tokens.last)
        settled = replace(value, tokens=Span(last, tokens.last))
        if self._is_off(settled, "tokens"):
            # A matrix hides which tokens it leaves out: the other side has those of the result.
            sides = [each.tokens for each in beside if each.fresh and each.tokens is not None]
            sides = [each for each in sides if not each.has_several]
            settled = replace(settled, tokens=fitted(sides[0], value.shape)) if sides else settled
        if bool((tokens.first == PLACE).any()):
            return settled  # weighed by its place in the chunk, and not yet put before it
        return replace(settled, fresh=frozenset(), spent=value.fresh | value.spent)

    def _shape(self, tensor: Tensor) -> Shape:
        return tuple(int(self._number(size)) for size in tensor.shape)

    def _number(self, value: Any) -> Any:
        """A number of the trace at these sizes."""
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            expression = value.node.expr.xreplace(self._symbols)
            if expression.free_symbols:
                expression = expression.xreplace(
                    dict.fromkeys(expression.free_symbols, sympy.Integer(self._sizes.tokens))
                )
            return int(expression)
        return value

    # --- faults -----------------------------------------------------------------------------------

    def _fault(self, value: Value, text_axis: int, token_axis: int | None) -> Fault | None:
        if OPAQUE in value.spent:
            return None
        if not _is_at(value.texts, text_axis, value.shape, causal=False):
            return "texts"
        if token_axis is None:
            return None
        if value.tokens is None:
            places = value.places
            return "places" if places is not None and places.first.shape[token_axis] > 1 else None
        if bool((value.tokens.first == PLACE).any()) and not value.fresh:
            return "places"
        at_own = _is_at(value.tokens, token_axis, value.shape, causal=bool(value.fresh))
        return None if at_own else "tokens"

    def _origin(self, node: fx.Node, fault: Fault) -> fx.Node:
        """The first node on the way to another that has its fault."""
        while True:
            bad = [each for each in node.all_input_nodes if self._is_bad(each, fault)]
            if not bad:
                return node
            node = bad[0]

    def _is_bad(self, node: fx.Node, fault: Fault) -> bool:
        """Whether numbers are not those of texts or tokens in their order."""
        value = self._values.get(node)
        if isinstance(value, list):
            return any(self._is_off(each, fault) for each in value)
        return value is not None and self._is_off(value, fault)

    def _is_off(self, value: Value, fault: Fault) -> bool:
        if fault == "places":
            has_place = value.tokens is not None and bool((value.tokens.first == PLACE).any())
            return has_place
        span, size = (
            (value.texts, self._sizes.texts)
            if fault == "texts"
            else (value.tokens, self._sizes.tokens)
        )
        if span is None:
            return False
        if span.has_several:
            return True
        order = torch.arange(size, dtype=torch.int32)
        entries = span.last.reshape(-1)
        if entries.numel() % size:
            return True
        return not (
            bool((entries.reshape(-1, size) == order).all())
            or bool((entries.reshape(size, -1) == order[:, None]).all())
        )


def _is_at(span: Span | None, axis: int, shape: Shape, *, causal: bool) -> bool:
    """Whether each number comes from its own place on an axis alone, or from none."""
    if span is None:
        return True
    own = along(axis, shape).first
    is_none = span.first > span.last
    if causal:
        return bool((is_none | (span.last <= own)).all())
    return bool((is_none | ((span.first == own) & (span.last == own))).all())


def _symbols(program: ExportedProgram, sizes: Sizes) -> dict[Any, Any]:
    """The symbols of the sizes of the ids, and their values."""
    ids = next(
        node
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in program.graph_signature.user_inputs
    )
    given = zip(ids.meta["val"].shape, (sizes.texts, sizes.tokens), strict=True)
    return {
        size.node.expr: sympy.Integer(number)
        for size, number in given
        if isinstance(size, torch.SymInt)
    }


def _kept(graph: fx.Graph) -> dict[str, set[fx.Node]]:
    """All that enters what each state keeps, by its name."""
    found: dict[str, set[fx.Node]] = {}
    for node in graph.nodes:
        if node.op == "call_function" and name_of(node.target) == "state_call":
            name, _, state = str(node.args[3]).partition(" ")
            if name == "keep":
                waiting, seen = [node], found.setdefault(state, set())
                while waiting:
                    each = waiting.pop()
                    if each not in seen:
                        seen.add(each)
                        waiting += each.all_input_nodes
    return found


def _is_open(tensor: Tensor) -> bool:
    """Whether a size depends on the texts."""
    return any(
        isinstance(size, torch.SymInt)
        and any(str(symbol).startswith("u") for symbol in size.node.expr.free_symbols)
        for size in tensor.shape
    )


def _numbers(given: Any, number: Any) -> Any:
    if isinstance(given, (list, tuple)):
        return type(given)(_numbers(each, number) for each in given)
    if isinstance(given, dict):
        return {key: _numbers(each, number) for key, each in given.items()}
    return number(given)


def _known(argument: Any) -> Any:
    if isinstance(argument, Value):
        return argument.known
    if isinstance(argument, (list, tuple)):
        return [_known(each) for each in argument]
    return argument
