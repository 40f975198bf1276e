"""Chooses the states that hold only the last tokens (docs/adr/0038)."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import onnx_ir as ir

from ortolan.export.exportable import Exportable
from ortolan.export.passes.window_states import start_windows, windows_of
from ortolan.export.settings import Plan
from ortolan.runtime.bundle.kinds import KINDS, STEPPED
from ortolan.runtime.bundle.manifest import State, StateType
from ortolan.runtime.engine.windows import sums_in_blocks, window_of


def with_windows(model: Exportable, graphs: Mapping[str, ir.Model], plan: Plan) -> Exportable:
    """The model with windows of its states; graphs, by role, are rewritten in place.

    All states stay whole where rows would gain nothing, and where the graphs are made for kernels
    that take no positions: those of WebGPU, CUDA, and standard operators.
    """
    options = plan.options
    if plan.device != "cpu" or options.attention != "fused" or plan.takes_one:
        return model
    if KINDS[plan.kind].has_encoder:
        return model
    steps = [graph for role, graph in graphs.items() if role in STEPPED]
    windows = windows_of(steps[0].graph, model.states("float32"))

    def states(dtype: StateType) -> tuple[State, ...]:
        return tuple(
            msgspec.structs.replace(state, window=windows.get(state.name))
            for state in model.states(dtype)
        )

    windowed = [state for state in states("float32") if state.window is not None]
    if window_of(
        windowed, model.context_length, min_call_tokens=model.min_call_tokens
    ) is None or not all(
        sums_in_blocks(state, is_int8=options.cache == "int8") for state in windowed
    ):
        return model
    for graph in steps:
        start_windows(graph.graph, windowed)
    return replace(model, states=states)
