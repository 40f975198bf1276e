"""The passes that give the graph of any author's module the form of Ortolan's own models."""

from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir.passes import common
from torch import Tensor

from ortolan.export.passes.fold_constants import fold_constants, inline_constants
from ortolan.export.passes.fuse_gelu import fuse_gelu
from ortolan.export.passes.norms import fuse_norm
from ortolan.export.passes.pack_projections import pack_projections
from ortolan.export.passes.pick_early import pick_early
from ortolan.export.passes.rotary_into_attention import rotary_into_attention
from ortolan.export.passes.rules import (
    fold_offsets,
    fuse_linear,
    norm_before_transpose,
    route_by_logits,
    select_booleans,
    transpose_weights,
)
from ortolan.export.passes.shapes import drop_reshapes


def fold(model: ir.Model, tables: Mapping[str, Tensor]) -> ir.Model:
    """Run the slow passes of `normalize`, which leave weights alone: before blocks are copied."""
    fold_constants(model, tables)
    fuse_gelu(model)
    return model


def normalize(model: ir.Model, *, context_length: int) -> ir.Model:
    """Rewrite the graph that torch traced from a module, after `fold`.

    Afterwards it has the nodes of an `ortolan.modeling` model, as far as the module computes the
    same, and `export.derived.recipes_of` returns the recipes of its new weights.
    """
    ir.passes.Sequential(
        fold_offsets,
        select_booleans,
        fuse_norm,
        drop_reshapes,
        fuse_linear,
        transpose_weights,
        norm_before_transpose,
        route_by_logits,
        common.RemoveUnusedNodesPass(),
    )(model)
    rotary_into_attention(model.graph, context_length)
    ir.passes.Sequential(
        common.RemoveUnusedNodesPass(),
        pack_projections,
        drop_reshapes,
        pick_early,
        common.RemoveUnusedNodesPass(),
    )(model)
    inline_constants(model.graph)
    return model
