"""Steps from the graph that torch writes to that of a bundle, one file each."""

import onnx_ir as ir
from onnx_ir.passes import common

from ortolan.export.passes.fold_casts import FoldCasts
from ortolan.export.passes.fuse_linear import FuseLinear
from ortolan.export.passes.fuse_skip_norm import FuseSkipNorm
from ortolan.export.passes.share_shapes import ShareShapes

__all__ = [
    "FoldCasts",
    "FuseLinear",
    "FuseSkipNorm",
    "ShareShapes",
    "tidy",
]


def tidy(model: ir.Model) -> ir.Model:
    """Run every pass that any precision needs, in order.

    The last steps drop what is not needed to compute, file names of this machine included: two
    exports of one checkpoint are byte-identical.
    """
    graph = model.graph
    # The pass that clears metadata leaves that of these values.
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
