"""Compute once, at export, what a graph computes from constants alone."""

import contextlib
import logging
from collections.abc import Iterator, Mapping

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript import optimizer
from onnxscript.rewriter import RewriteRuleSet
from onnxscript.rewriter.rules import common as rules
from torch import Tensor

from ortolan.export.passes.nodes import Insert

LARGEST = 64
"""Elements of a constant that is written into the graph itself."""


_RULES = RewriteRuleSet(
    [
        rules.collapse_slice_rule,
        rules.collapse_slice2_rule,
        rules.no_op_cast_rule,
        rules.no_op_expand_rule,
        rules.no_op_transpose_rule,
        rules.reshape_reshape_rule,
        rules.slice_split_rule,
        rules.transpose_transpose_rule,
        rules.unsqueeze_unsqueeze_rule,
    ]
)
"""Onnxscript's rules but those for sums with 0 and products with 1. They compare with a tolerance,
and would drop the 1e-8 that keeps a norm from dividing by 0."""


def fold_constants(model: ir.Model, tables: Mapping[str, Tensor]) -> None:
    """Fold constants, drop nodes that change nothing, and merge equal nodes.

    The exporter writes a module as its author did: casts of numbers, sizes computed again for
    every view, transpositions there and back.
    """
    for name, table in tables.items():
        if name in model.graph.initializers:
            model.graph.initializers[name].const_value = ir.tensor(table, name=name)
    with _quiet():
        common.InlinePass()(model)
        for _ in range(2):
            optimizer.fold_constants(model, onnx_shape_inference=True)
            _RULES.apply_to_model(model)
            common.RemoveUnusedNodesPass()(model)
        ir.passes.Sequential(
            common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
            common.DeduplicateInitializersPass(),
            common.CommonSubexpressionEliminationPass(),
            common.NameFixPass(),
        )(model)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings that weights without data cannot be deduplicated."""
    logger = logging.getLogger("onnx_ir.passes.common.initializer_deduplication")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def inline_constants(graph: ir.Graph) -> None:
    """Turn initializers that are numbers or short vectors with data into constants.

    The others are written next to the weights.
    """
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or len(tensor.shape) > 1 or tensor.size > LARGEST:
            continue
        constant = Insert(graph, graph[0]).Constant(value=tensor)
        del graph.initializers[name]
        constant.shape, constant.type = value.shape, value.type
        value.replace_all_uses_with(constant, replace_graph_outputs=True)
        constant.name = name
