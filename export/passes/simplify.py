"""The steps that turn the graph of a module as its author wrote it into that of one of ours."""

from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir.passes import common
from torch import Tensor

from ortolan.export.passes.drop_reshapes import DropReshapes
from ortolan.export.passes.fold_constants import FoldConstants, InlineConstants
from ortolan.export.passes.fold_offsets import FoldOffsets
from ortolan.export.passes.fuse_gelu import FuseGelu
from ortolan.export.passes.fuse_linear import FuseLinear
from ortolan.export.passes.fuse_norm import FuseNorm
from ortolan.export.passes.norm_before_transpose import NormBeforeTranspose
from ortolan.export.passes.pack_projections import PackProjections
from ortolan.export.passes.pick_early import PickEarly
from ortolan.export.passes.rotary_into_attention import RotaryIntoAttention
from ortolan.export.passes.transpose_weights import TransposeWeights


def simplify(model: ir.Model, *, tables: Mapping[str, Tensor], context_length: int) -> ir.Model:
    """Rewrite a graph that torch wrote of a module of any author.

    Afterwards it has the nodes that the exports of `ortolan.modeling` have, as far as the module
    computes the same, and `export.derived.recipes_of` gives the recipes of its new weights.

    Args:
        model: initializers carry names of weights and tables; one GroupQueryAttention a layer,
            with or without rotary positions of its own.
        tables: the fixed tensors among the initializers, such as the frequencies of rotary
            positions. Those that are left, and the tables of rotations, have their data.
        context_length: the last position to prepare for, plus 1.
    """
    return ir.passes.Sequential(
        FoldConstants(tables),
        FoldOffsets(),
        FuseNorm(),
        FuseGelu(),
        DropReshapes(),
        FuseLinear(),
        TransposeWeights(),
        NormBeforeTranspose(),
        common.RemoveUnusedNodesPass(),
        RotaryIntoAttention(context_length),
        common.RemoveUnusedNodesPass(),
        PackProjections(),
        DropReshapes(),
        PickEarly(),
        common.RemoveUnusedNodesPass(),
        InlineConstants(),
    )(model).model
