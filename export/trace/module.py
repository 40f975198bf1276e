"""Traces a step of any module with `forward(ids, state)`, and finds the states that it carries.

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
"""Tokens of the forward that shows what a module carries."""


@dataclass(frozen=True, slots=True)
class Carried:
    """The states that a module carries from step to step, and the size of its vocabulary.

    Attributes:
        layers: attention of each layer with keys, by its number.
        extended: channels of the other states that grow with every token, by name.
        kept: shapes of the states of fixed size for one row, by name.
        vocab_size: of its logits.
        takes_one: whether it reads its tokens one by one.
    """

    layers: Mapping[int, AttentionConfig]
    extended: Mapping[str, int]
    kept: Mapping[str, tuple[int, ...]]
    vocab_size: int
    takes_one: bool

    def states(self, dtype: StateType) -> tuple[State, ...]:
        """The states as the manifest lists them."""

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

        caches = [
            state(f"{place}.{kind}", (spec.num_kv_heads, "capacity", spec.head_dim), "append", PAST)
            for place, spec in enumerate(self.layers.values())
            for kind in ("key", "value")
        ]
        extended = [
            state(name, ("capacity", width), "append") for name, width in self.extended.items()
        ]
        kept = [state(name, shape, "replace") for name, shape in self.kept.items()]
        return (*caches, *extended, *kept)


class _ModuleGraph(Entry):
    """A module's step, with the inputs and outputs of a decoder's graph."""

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
        carried, pasts = self.carried, iter(states)
        caches = {layer: LayerCache(next(pasts), next(pasts)) for layer in carried.layers}
        extended = {name: next(pasts) for name in carried.extended}
        grows = bool(caches or extended)
        state = CachedState(
            StepLengths(seqlens_k, total, seen_of(total, states[0].shape[-2]) if grows else None),
            caches,
            dict(zip(carried.kept, pasts, strict=True)),
            logit_positions,
            extended,
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
    """Find what a module carries, from one forward without memory.

    Args:
        module: its parameters are on `meta`.

    Raises:
        ConfigError: it does not compute logits from ids and a state.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        twin, state = twin_of(module, None), WholeState()
        logits = _call(twin, torch.zeros(1, TOKENS, dtype=torch.int64), state)
    if not isinstance(logits, Tensor) or logits.shape[:-1] != (1, TOKENS):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ConfigError(
            f"module: expected logits of shape (1, {TOKENS}, V) for {TOKENS} ids, got {got}. "
            "Return one tensor (B, S, V) from forward."
        )
    if not state.layers and not state.kept and not state.extended:
        raise ConfigError(
            "module: forward uses no attention or state, so a step cannot continue what it "
            "computes from other tokens. Call state.attend, state.keep or state.extend."
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
        module: its parameters are on `meta`, its buffers have their values.
        carried: what it carries.
        dtype: of parameters, activations and states; logits are always float32.
        tied: second names of shared parameters, and the first name of each.
        sequence: number of new tokens, if it is fixed.

    Returns:
        A graph like a decoder's, whose initializers have the names of the module's parameters and
        buffers, and no data.

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
                f"module: torch.onnx.export cannot trace forward: {_first_line(error)}. Use tensor "
                "operations whose shapes follow from those of the ids."
            ) from error


def _signature(carried: Carried, dtype: torch.dtype, sequence: int | None) -> Signature:
    batch, capacity = 2, 8
    caches = [
        torch.zeros(batch, spec.num_kv_heads, capacity, spec.head_dim, dtype=dtype)
        for spec in carried.layers.values()
        for _ in range(2)
    ]
    extended = [
        torch.zeros(batch, capacity, width, dtype=dtype) for width in carried.extended.values()
    ]
    kept = [torch.zeros(batch, *shape, dtype=dtype) for shape in carried.kept.values()]
    length: dict[int, str] = {} if sequence else {1: "sequence"}
    rows: dict[int, str] = {} if sequence else {1: "rows"}
    layers, names = len(carried.layers), [*carried.extended, *carried.kept]
    return Signature(
        arguments=(
            torch.zeros(batch, sequence or 4, dtype=torch.int64),
            torch.zeros(batch, dtype=torch.int32),
            torch.zeros((), dtype=torch.int32),
            torch.zeros(batch, sequence or 3, dtype=torch.int64),
            # One list: an empty list would leave every axis without a name.
            [*caches, *extended, *kept],
        ),
        axes=(
            {0: "batch", **length},
            {0: "batch"},
            {},
            {0: "batch", **rows},
            [
                *({0: "batch", 2: "capacity"} for _ in caches),
                *({0: "batch", 1: "capacity"} for _ in extended),
                *({0: "batch"} for _ in kept),
            ],
        ),
        inputs=[*STEP_INPUTS, *state_names(PAST, layers), *(f"past.{name}" for name in names)],
        outputs=[
            LOGITS,
            *state_names(PRESENT, layers),
            *(f"{PRESENT}.{name}" for name in names),
        ],
    )


def twin_of(module: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """Copy a module with fake parameters and buffers, under the caller's FakeTensorMode.

    Args:
        module: left as it is.
        dtype: of the parameters; by default their own.
    """
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        fake = torch.empty(parameter.shape, dtype=dtype or parameter.dtype)
        memo[id(parameter)] = nn.Parameter(fake, requires_grad=False)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty(buffer.shape, dtype=buffer.dtype)
    memo |= {id(tensor): tensor for tensor in loose_tensors(module)}
    return copy.deepcopy(module, memo)


def loose_tensors(module: nn.Module) -> Iterator[Tensor]:
    """Tensors that are plain attributes: constants, or what a forward left, such as a loss."""
    for part in module.modules():
        yield from (value for value in vars(part).values() if isinstance(value, Tensor))


def _call(module: nn.Module, ids: Tensor, state: WholeState) -> object:
    try:
        with torch.no_grad():
            return module(ids, state)
    except ModelingError:
        raise
    except Exception as error:
        raise ConfigError(
            f"module: forward(ids, state) of {TOKENS} ids raised {type(error).__name__}: "
            f"{_first_line(error)}. Call it once with State.whole()."
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]
