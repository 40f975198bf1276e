"""Passes from the graph that torch writes to that of a bundle; `rules` are of one operator."""

import onnx_ir as ir
from onnx_ir.passes import common

from ortolan.export.passes.norms import fuse_skip_norms
from ortolan.export.passes.rules import fold_casts, fuse_linear
from ortolan.export.passes.shapes import share_shapes


def tidy(model: ir.Model) -> ir.Model:
    """Run the passes that every precision needs, in order.

    The last ones drop everything that is not needed to compute, such as file names of this machine,
    so that two exports of one checkpoint are byte-identical.
    """
    graph = model.graph
    # ClearMetadataAndDocStringPass leaves the metadata of these values.
    for value in (*graph.inputs, *graph.initializers.values(), *graph.outputs):
        value.metadata_props.clear()
    return ir.passes.Sequential(
        fold_casts,
        share_shapes,
        fuse_linear,
        fuse_skip_norms,
        common.IdentityEliminationPass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedOpsetsPass(),
        common.ClearMetadataAndDocStringPass(),
    )(model).model
