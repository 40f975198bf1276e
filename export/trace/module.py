"""Traces a step of any module with `forward(ids, state)`, and finds the states that it carries.

Shape letters: B batch, S new tokens, R requested positions, V vocabulary.
"""

import contextlib
import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.traceback import preserve_node_meta

from ortolan.export.trace.blocks import Block, BlockRecorder, skip
from ortolan.export.trace.decoder import seen_of, step_inputs
from ortolan.export.trace.lines import (
    Annotated,
    causes,
    first_line,
    line_of_error,
    line_of_node,
    node_in,
)
from ortolan.export.trace.observed import ROWS, TOKENS, ObservedState
from ortolan.export.trace.program import Entry, Feeds, GraphInput, Signature, trace_entry
from ortolan.export.trace.repeat import Layer, UnlikeBlocksError, copy_blocks, owner_of
from ortolan.modeling.config import AttentionConfig
from ortolan.modeling.errors import ConfigError, ModelingError
from ortolan.modeling.layers.cache import LayerCache, StepLengths
from ortolan.modeling.layers.ops import select
from ortolan.modeling.state import CachedState, WholeState
from ortolan.modeling.state import State as ModuleState
from ortolan.runtime.bundle.interface import (
    LOGIT_POSITIONS,
    LOGITS,
    PAST,
    PRESENT,
    SEQLENS,
    TOTAL,
)
from ortolan.runtime.bundle.manifest import State, StateType
from ortolan.runtime.bundle.source import IDS

NESTED = 4
"""Depth to which lists and dictionaries in attributes are searched for tensors."""


@dataclass(frozen=True, slots=True)
class Carried:
    """The states that a module carries from step to step, and the size of its vocabulary.

    Attributes:
        layers: attention of each layer with keys, by its number.
        extended: channels of the other states that grow with every token, by name.
        kept: shapes of the states of fixed size for one row, by name.
        vocab_size: of its logits.
        takes_one: whether it reads its tokens one by one.
        blocks: those that compute the same as others.
    """

    layers: Mapping[int, AttentionConfig]
    extended: Mapping[str, int]
    kept: Mapping[str, tuple[int, ...]]
    vocab_size: int
    takes_one: bool
    blocks: tuple[Block, ...] = ()

    def states(self, dtype: StateType) -> tuple[State, ...]:
        """The states as the manifest lists them."""
        return tuple(chain.from_iterable(self.keyed_states(dtype).values()))

    def keyed_states(self, dtype: StateType) -> dict[object, tuple[State, ...]]:
        """The states of each layer and of each name, in the order of a graph."""

        def state(
            name: str,
            shape: tuple[int | str, ...],
            update: Literal["append", "replace"],
            past: str = "past",
        ) -> State:
            return State(
                name=name,
                input=f"{past}.{name}",
                output=f"{PRESENT}.{name}",
                shape=("batch", *shape),
                dtype=dtype,
                update=update,
            )

        states: dict[object, tuple[State, ...]] = {}
        for place, (layer, spec) in enumerate(self.layers.items()):
            shape = (spec.num_kv_heads, "capacity", spec.head_dim)
            states[layer] = tuple(
                state(f"{place}.{kind}", shape, "append", PAST) for kind in ("key", "value")
            )
        for name, width in self.extended.items():
            states["extended", name] = (state(name, ("capacity", width), "append"),)
        for name, kept in self.kept.items():
            states["kept", name] = (state(name, kept, "replace"),)
        return states


class _ModuleGraph(Entry):
    """A module's step, with the inputs and outputs of a decoder's graph."""

    def __init__(self, model: nn.Module, carried: Carried) -> None:
        super().__init__(model)
        self.carried = carried

    def forward(self, feeds: Feeds) -> tuple[Tensor, list[LayerCache], list[Tensor], list[Tensor]]:
        carried = self.carried
        pasts = {
            key: [feeds[state.input] for state in states]
            for key, states in carried.keyed_states("float32").items()
            if states[0].input in feeds  # otherwise of a block that is copied later
        }
        caches = {layer: LayerCache(*pasts[layer]) for layer in carried.layers if layer in pasts}
        extended, kept = (
            {name: pasts[kind, name][0] for name in names if (kind, name) in pasts}
            for kind, names in (("extended", carried.extended), ("kept", carried.kept))
        )
        growing = [*(cache.key for cache in caches.values()), *extended.values()]
        total, rows = feeds[TOTAL], feeds[LOGIT_POSITIONS]
        seen = seen_of(total, growing[0].shape[-2]) if growing else None
        state = CachedState(StepLengths(feeds[SEQLENS], total, seen), caches, kept, rows, extended)
        with Annotated():
            logits = self.model(feeds[IDS], state)
        if not state.has_selected:
            logits = select(logits, rows)
        return (
            logits.float(),
            [state.presents[layer] for layer in caches],
            [state.extended[name] for name in extended],
            [state.kept[name] for name in kept],
        )


def find_carried(module: nn.Module) -> Carried:
    """Find what a module carries, from one forward without memory."""
    name = type(module).__name__
    with FakeTensorMode(allow_non_fake_inputs=True):
        twin, state = twin_of(module, None), ObservedState()
        with BlockRecorder(twin, state.seen) as recorder:
            logits = _call(twin, torch.zeros(ROWS, TOKENS, dtype=torch.int64), state)
    if not isinstance(logits, Tensor) or logits.shape[:-1] != (ROWS, TOKENS):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ConfigError(
            f"{name}: expected logits of shape ({ROWS}, {TOKENS}, V) for {TOKENS} ids, got {got}. "
            "Return one tensor (B, S, V) from forward, with the logits of every token."
        )
    for one, (has, lacks) in {
        **dict.fromkeys(state.recalled.keys() - state.kept.keys(), ("recalled", "kept")),
        **dict.fromkeys(state.kept.keys() - state.recalled.keys(), ("kept", "recalled")),
    }.items():
        raise ConfigError(
            f"{name}: state {one!r} is {has} but never {lacks} in a forward pass. Call both "
            "state.recall and state.keep, or neither."
        )
    if not state.layers and not state.kept and not state.extended:
        raise ConfigError(
            f"{name}: forward uses no attention or state, so a step cannot continue what it "
            "computes from other tokens. Call state.attend, state.keep or state.extend."
        )
    return Carried(
        layers=dict(state.layers),
        extended={name: shape[-1] for name, shape in state.extended.items()},
        kept={name: shape[1:] for name, shape in state.kept.items()},
        vocab_size=int(logits.shape[-1]),
        takes_one=state.takes_one,
        blocks=recorder.blocks(),
    )


def trace_module(
    module: nn.Module,
    carried: Carried,
    *,
    dtype: torch.dtype,
    tied: Mapping[str, str],
    sequence: int | None = None,
    fold: Callable[[ir.Model], ir.Model] = lambda traced: traced,
) -> ir.Model:
    """Trace one step of a module.

    Args:
        module: its parameters are on `meta`, its buffers have their values.
        carried: what it carries.
        dtype: of parameters, activations and states; logits are always float32.
        tied: second names of shared parameters, and the first name of each.
        sequence: number of new tokens, if it is fixed.
        fold: rewrites a graph before its blocks are copied.
    """
    io = _signature(carried, dtype, sequence)
    trace = partial(_traced, module, carried, dtype=dtype, tied=tied)
    # Otherwise trace the whole module: slower, but the same graph.
    with contextlib.suppress(UnlikeBlocksError, torch.onnx.errors.OnnxExporterError):
        layers = _layers(carried, tied)
        short = Signature(
            [each for each in io.inputs if _is_traced(each.name, layers)],
            [name for name in io.outputs if _is_traced(name, layers)],
        )
        traced = fold(trace(short, carried.blocks))
        copy_blocks(traced, layers, inputs=io.names, outputs=io.outputs)
        return traced
    try:
        return fold(trace(io, ()))
    except torch.onnx.errors.OnnxExporterError as error:
        raise _untraceable(type(module).__name__, error) from error


def _traced(
    module: nn.Module,
    carried: Carried,
    io: Signature,
    blocks: Sequence[Block],
    *,
    dtype: torch.dtype,
    tied: Mapping[str, str],
) -> ir.Model:
    """Trace a step, with one block of each kind."""
    with FakeTensorMode(allow_non_fake_inputs=True), preserve_node_meta():
        twin = twin_of(module, dtype)
        skip(twin, blocks)
        return trace_entry(_ModuleGraph(twin, carried), io, tied)


def _layers(carried: Carried, tied: Mapping[str, str]) -> Mapping[str, Layer]:
    """The blocks with the names of their weights and states."""
    states = carried.keyed_states("float32")
    layers = dict[str, Layer]()
    for block in carried.blocks:
        own = chain.from_iterable(states[key] for key in block.states)
        names = [name for state in own for name in (state.input, state.output)]
        layers[block.name] = Layer(traced=block.traced, names=(block.name, *names))
    is_tied = any(owner_of(name, layers) for pair in tied.items() for name in pair)
    if not layers or is_tied:
        raise UnlikeBlocksError("no block repeats")
    return layers


def _is_traced(name: str, layers: Mapping[str, Layer]) -> bool:
    owner = owner_of(name, layers)
    return owner is None or layers[owner].traced == owner


def _untraceable(name: str, error: Exception) -> ConfigError:
    """The error for a module that torch cannot trace: its operator, and the user's line."""
    node, *_, root = node_in(error), *causes(error)
    if isinstance(root, ConfigError):
        return root
    if node is not None:
        operator = str(node.target).removesuffix(".default")
        return ConfigError(
            f"{name}: torch.onnx.export has no ONNX operator for {operator}{line_of_node(node)}. "
            "Compute the same with other operators."
        )
    return untraceable(name, "torch.onnx.export", root)


def untraceable(name: str, tracer: str, error: BaseException) -> ConfigError:
    """The error for a forward that raised while it was traced, with the user's line."""
    reads_numbers = isinstance(
        error,
        (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode),
    )
    if reads_numbers:
        return ConfigError(
            f"{name}: forward reads numbers of a tensor{line_of_error(error)}. A graph has no "
            "branch on them and no size from them: use torch.where, and operators whose shapes "
            "follow from those of the ids."
        )
    return ConfigError(
        f"{name}: {tracer} cannot trace forward: {type(error).__name__}: {first_line(error)}"
        f"{line_of_error(error)}. Use tensor operations whose shapes follow from those of the ids."
    )


def _signature(carried: Carried, dtype: torch.dtype, sequence: int | None) -> Signature:
    batch, capacity = 2, 8

    def example(state: State) -> GraphInput:
        sizes = [size if isinstance(size, int) else capacity for size in state.shape[1:]]
        axes = {axis: name for axis, name in enumerate(state.shape) if isinstance(name, str)}
        return GraphInput(state.input, torch.zeros(batch, *sizes, dtype=dtype), axes)

    states = carried.states("float32")
    return Signature(
        [*step_inputs(sequence, batch=batch), *map(example, states)],
        [LOGITS, *(state.output for state in states)],
    )


def twin_of(module: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """Copy a module with fake parameters and buffers, under the caller's FakeTensorMode."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        fake = torch.empty(parameter.shape, dtype=dtype or parameter.dtype)
        memo[id(parameter)] = nn.Parameter(fake, requires_grad=False)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty(buffer.shape, dtype=buffer.dtype)
    memo |= {id(tensor): tensor for tensor in loose_tensors(module)}
    return copy.deepcopy(module, memo)


def loose_tensors(module: nn.Module) -> Iterator[Tensor]:
    """Tensors in plain attributes: constants, or what a forward left, such as a loss."""
    for part in module.modules():
        for name, value in vars(part).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                yield from _tensors_in(value)


def _tensors_in(value: object, depth: int = 0) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth < NESTED and isinstance(value, (list, tuple, dict, set, deque, ModuleState)):
        parts = vars(value) if isinstance(value, ModuleState) else value
        for part in parts.values() if isinstance(parts, dict) else parts:
            yield from _tensors_in(part, depth + 1)


def apart(module: nn.Module) -> nn.Module:
    """Copy a module without its tensors, so that attributes set by a call stay in the copy."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in loose_tensors(module)}
    memo |= {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, memo)


def _call(module: nn.Module, ids: Tensor, state: WholeState) -> object:
    try:
        with torch.no_grad():
            return module(ids, state)
    except ModelingError:
        raise
    except Exception as error:
        raise untraceable(type(module).__name__, "a forward of 3 ids", error) from error
