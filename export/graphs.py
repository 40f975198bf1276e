"""Traces every graph of a bundle."""

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from ortolan.export.derived import DerivedWeights, recipes_of
from ortolan.export.exportable import Exportable
from ortolan.export.passes import tidy
from ortolan.export.progress import Progress
from ortolan.export.settings import Plan
from ortolan.runtime.bundle.kinds import BOTH_WAYS, DECODER, PREFILL


def trace(model: Exportable, plan: Plan, progress: Progress) -> dict[str, ir.Model]:
    """Trace and tidy every graph, by role."""
    graphs, traced = plan.graph_files, dict[str, ir.Model]()
    for number, (role, graph) in enumerate(graphs.items()):
        progress("trace", number, len(graphs))
        if role == BOTH_WAYS:  # rewritten later (`passes.specialize`)
            traced[role] = traced[PREFILL if PREFILL in traced else DECODER].clone()
        else:
            traced[role] = tidy(model.trace(role, graph, plan.dtype))
    progress("trace", len(graphs), len(graphs))
    return traced


def with_derived(model: Exportable, graphs: Mapping[str, ir.Model]) -> Exportable:
    """The model with the weights that its graphs derive from others, now or when specialized."""
    return replace(model, weights=DerivedWeights(model.weights, recipes_of(graphs.values())))
