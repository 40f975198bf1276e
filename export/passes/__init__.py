"""Passes from the graph that torch writes to that of a bundle, one in a file."""

import onnx_ir as ir
from onnx_ir.passes import common

from ortolan.export.passes.fold_casts import FoldCasts
from ortolan.export.passes.fuse_linear import FuseLinear
from ortolan.export.passes.fuse_skip_norm import FuseSkipNorm
from ortolan.export.passes.share_shapes import ShareShapes

__all__ = ["FoldCasts", "FuseLinear", "FuseSkipNorm", "ShareShapes", "tidy"]


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
        FoldCasts(),
        ShareShapes(),
        FuseLinear(),
        FuseSkipNorm(),
        common.IdentityEliminationPass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedOpsetsPass(),
        common.ClearMetadataAndDocStringPass(),
    )(model).model
