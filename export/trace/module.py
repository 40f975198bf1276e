"""A step of a user's own module as a graph: a module with `forward(ids, state)`.

Shape letters: B batch, S new tokens, R requested positions, V vocabulary.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ortolan.export.trace.decoder import seen_of
from ortolan.export.trace.program import Entry, Signature, trace_entry
from ortolan.modeling.config import AttentionConfig
from ortolan.modeling.errors import ConfigError, ModelingError
from ortolan.modeling.layers.cache import LayerCache, StepLengths
from ortolan.modeling.layers.ops import select
from ortolan.modeling.state import CachedState, WholeState
from ortolan.runtime.bundle.interface import LOGITS, PAST, PRESENT, STEP_INPUTS, state_names
from ortolan.runtime.bundle.manifest import State, StateType

TOKENS = 3
"""Of the text that a module is shown to find what it carries."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What a module carries from step to step, and how many ids it knows.

    Attributes:
        layers: the attention of each layer that has keys, by its number.
        extended: channels of what else grows by every token, by name.
        kept: the shape of what is kept for one text, by name.
        vocab_size: of its logits.
        takes_one: it reads its tokens one by one.
    """

    layers: Mapping[int, AttentionConfig]
    extended: Mapping[str, int]
    kept: Mapping[str, tuple[int, ...]]
    vocab_size: int
    takes_one: bool

    def states(self, dtype: StateType) -> tuple[State, ...]:
        """As the manifest lists them."""
        names = zip(
            *(state_names(prefix, len(self.layers)) for prefix in (PAST, PRESENT)), strict=True
        )
        appended = [
            State(
                name=taken.removeprefix(f"{PAST}."),
                input=taken,
                output=given,
                shape=("batch", spec.num_kv_heads, "capacity", spec.head_dim),
                dtype=dtype,
                update="append",
            )
            for (taken, given), spec in zip(
                names, [spec for spec in self.layers.values() for _ in range(2)], strict=True
            )
        ]
        others: list[tuple[str, tuple[int | str, ...], Literal["append", "replace"]]] = [
            *((name, ("capacity", width), "append") for name, width in self.extended.items()),
            *((name, shape, "replace") for name, shape in self.kept.items()),
        ]
        named = [
            State(
                name=name,
                input=f"past.{name}",
                output=f"{PRESENT}.{name}",
                shape=("batch", *shape),
                dtype=dtype,
                update=update,
            )
            for name, shape, update in others
        ]
        return (*appended, *named)


class _ModuleGraph(Entry):
    """A module's step with the inputs and outputs of the graph contract."""

    def __init__(self, model: nn.Module, carried: Carried) -> None:
        super().__init__(model)
        self.carried = carried

    def forward(
        self,
        input_ids: Tensor,
        seqlens_k: Tensor,
        total: Tensor,
        logit_positions: Tensor,
        states: Sequence[Tensor],
    ) -> tuple[Tensor, list[LayerCache], list[Tensor], list[Tensor]]:
        carried, given = self.carried, iter(states)
        caches = {layer: LayerCache(next(given), next(given)) for layer in carried.layers}
        sequences = {name: next(given) for name in carried.extended}
        growing = caches or sequences
        state = CachedState(
            StepLengths(seqlens_k, total, seen_of(total, states[0].shape[-2]) if growing else None),
            caches,
            dict(zip(carried.kept, given, strict=True)),
            logit_positions,
            sequences,
        )
        logits = self.model(input_ids, state)
        if not state.has_selected:
            logits = select(logits, logit_positions)
        return (
            logits.float(),
            [state.presents[layer] for layer in carried.layers],
            [state.extended[name] for name in carried.extended],
            [state.kept[name] for name in carried.kept],
        )


def find_carried(module: nn.Module) -> Carried:
    """What a module carries, from one forward over a text without memory.

    Args:
        module: its parameters lie on `meta`.

    Raises:
        ConfigError: it does not compute logits from ids and a state.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        twin, state = twin_of(module, None), WholeState()
        logits = _call(twin, torch.zeros(1, TOKENS, dtype=torch.int64), state)
    expected = f"logits of shape (1, {TOKENS}, V) for {TOKENS} ids"
    if not isinstance(logits, Tensor) or logits.shape[:-1] != (1, TOKENS):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ConfigError(
            f"module: expected {expected}, got {got}. Return one tensor (B, S, V) from forward."
        )
    if not state.layers and not state.kept and not state.extended:
        raise ConfigError(
            "module: expected attention through state.attend, or a state through state.keep or "
            "state.extend, got none. What it computes from other tokens cannot be continued."
        )
    return Carried(
        layers=dict(state.layers),
        extended={name: shape[-1] for name, shape in state.extended.items()},
        kept={name: shape[1:] for name, shape in state.kept.items()},
        vocab_size=int(logits.shape[-1]),
        takes_one=state.takes_one,
    )


def trace_module(
    module: nn.Module,
    carried: Carried,
    *,
    dtype: torch.dtype,
    tied: Mapping[str, str],
    sequence: int | None = None,
) -> ir.Model:
    """Trace one step of a module.

    Args:
        module: its parameters lie on `meta`, its buffers have their values.
        carried: what it carries.
        dtype: of parameters, activations, cache and memory; logits are float32 in any case.
        tied: names that a parameter has besides its own, and its own.
        sequence: new tokens of a step, if their number is fixed.

    Returns:
        A graph with the inputs and outputs of the bundle's contract. Initializers carry the names
        of the module's parameters and buffers, without data.

    Raises:
        ConfigError: torch cannot trace it.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        entry = _ModuleGraph(twin_of(module, dtype), carried)
        io = _signature(carried, dtype, sequence)
        try:
            return trace_entry(entry, io, tied)
        except torch.onnx.errors.OnnxExporterError as error:
            raise ConfigError(
                f"module: expected a forward that torch.onnx.export can trace, got "
                f"{_first_line(error)}. Use tensor operations whose shapes follow from those of "
                "the ids."
            ) from error


def _signature(carried: Carried, dtype: torch.dtype, sequence: int | None) -> Signature:
    batch, new_tokens, capacity = 2, sequence or 4, 8
    cache = [
        torch.zeros(batch, spec.num_kv_heads, capacity, spec.head_dim, dtype=dtype)
        for spec in carried.layers.values()
        for _ in range(2)
    ]
    sequences = [
        torch.zeros(batch, capacity, width, dtype=dtype) for width in carried.extended.values()
    ]
    memory = [torch.zeros(batch, *shape, dtype=dtype) for shape in carried.kept.values()]
    length: dict[int, str] = {} if sequence else {1: "sequence"}
    rows: dict[int, str] = {} if sequence else {1: "rows"}
    layers, named = len(carried.layers), [*carried.extended, *carried.kept]
    return Signature(
        arguments=(
            torch.zeros(batch, new_tokens, dtype=torch.int64),
            torch.zeros(batch, dtype=torch.int32),
            torch.zeros((), dtype=torch.int32),
            torch.zeros(batch, sequence or 3, dtype=torch.int64),
            [
                *cache,
                *sequences,
                *memory,
            ],  # together: an empty list would leave every axis without a name
        ),
        axes=(
            {0: "batch", **length},
            {0: "batch"},
            {},
            {0: "batch", **rows},
            [
                *({0: "batch", 2: "capacity"} for _ in cache),
                *({0: "batch", 1: "capacity"} for _ in sequences),
                *({0: "batch"} for _ in memory),
            ],
        ),
        inputs=[
            *STEP_INPUTS,
            *state_names(PAST, layers),
            *(f"past.{name}" for name in named),
        ],
        outputs=[
            LOGITS,
            *state_names(PRESENT, layers),
            *(f"{PRESENT}.{name}" for name in named),
        ],
    )


def twin_of(module: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """The same module with parameters and buffers of the trace; call it in its mode.

    Args:
        module: of which nothing is changed.
        dtype: of parameters; None for their own.
    """
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        made = torch.empty(parameter.shape, dtype=dtype or parameter.dtype)
        memo[id(parameter)] = nn.Parameter(made, requires_grad=False)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty(buffer.shape, dtype=buffer.dtype)
    memo |= {id(tensor): tensor for tensor in loose_tensors(module)}
    return copy.deepcopy(module, memo)


def loose_tensors(module: nn.Module) -> Iterator[Tensor]:
    """Tensors that are plain attributes: a constant, or what a forward noted, such as a loss."""
    for part in module.modules():
        yield from (each for each in vars(part).values() if isinstance(each, Tensor))


def _call(module: nn.Module, ids: Tensor, state: WholeState) -> object:
    try:
        with torch.no_grad():
            return module(ids, state)
    except ModelingError:
        raise
    except Exception as error:
        raise ConfigError(
            f"module: expected a forward(ids, state) of {TOKENS} ids, got "
            f"{type(error).__name__}: {_first_line(error)}. Call it once with State.whole()."
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]
