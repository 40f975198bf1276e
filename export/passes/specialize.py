"""Rewrites graphs for the device and the precision of an export."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir
from onnx_ir.passes import common

from ortolan.export.errors import OptionError
from ortolan.export.passes.both_ways import see_both_ways
from ortolan.export.passes.plain_attention import plain_attention
from ortolan.export.passes.quantize_experts import quantize_experts
from ortolan.export.passes.quantize_products import quantize_products
from ortolan.export.passes.quantize_weights import quantize_weights
from ortolan.export.passes.rotate_stream import rotate_stream
from ortolan.export.passes.rules import plain_convolutions, plain_products
from ortolan.export.quantize.schemes import is_block
from ortolan.export.scheme import Scheme
from ortolan.export.settings import Plan
from ortolan.export.values import static_shape
from ortolan.runtime.bundle.kinds import BOTH_WAYS, ENCODER, KINDS, MAPS_ROLE, PREFILL


@dataclass(frozen=True, slots=True, kw_only=True)
class Specialized:
    """Graphs as they will be written, by role, and the weights that they read as codes.

    `channels` are those in integer products.
    """

    graphs: Mapping[str, ir.Model]
    schemes: Mapping[str, Scheme]
    channels: Sequence[str]


def specialize(
    graphs: Mapping[str, ir.Model], plan: Plan, schemes: Mapping[str, Scheme]
) -> Specialized:
    """Rewrite tidied graphs, by role, in place."""
    models = list(graphs.values())
    _refuse_experts(models, plan)
    if BOTH_WAYS in graphs:
        see_both_ways(graphs[BOTH_WAYS].graph)
    if plan.options.attention == "portable":
        for model in models:
            plain_convolutions(model)
    channels: list[str] = []
    if plan.has_int8_prefill:
        channels = _quantize_products(graphs, plan, schemes)
    # A weight that only integer products read needs no low-bit codes.
    read = {name for model in models for name in model.graph.initializers}
    schemes = {name: scheme for name, scheme in schemes.items() if name in read}
    form: Literal["fused", "portable", "web"] = "web" if plan.device == "web" else "fused"
    if plan.options.attention == "portable":
        form = "portable"
    for model in models:
        quantize_weights(model.graph, schemes, form)
        quantize_experts(model.graph, schemes)
        if plan.is_for_webgpu:
            plain_attention(model, "webgpu")
            plain_products(model)
            common.RemoveUnusedNodesPass()(model)  # weights that are read transposed now
        elif plan.device == "cuda" and plan.options.attention == "fused":
            plain_attention(model, "cuda")
    return Specialized(graphs=graphs, schemes=schemes, channels=channels)


def _quantize_products(
    graphs: Mapping[str, ir.Model], plan: Plan, schemes: Mapping[str, Scheme]
) -> list[str]:
    """Use integer products in the graph that reads whole prompts; return their weights."""
    has_encoder = KINDS[plan.kind].has_encoder
    role = ENCODER if has_encoder else PREFILL
    names = [name for name in schemes if is_block(name)]
    channels = [name for name in names if _is_product(graphs[role].graph, name)]
    if not channels:
        raise OptionError(
            "prefill_precision: the layers of this model have no products. Choose float."
        )
    if not has_encoder:
        renamed = rotate_stream(graphs[role].graph, set(channels))
        channels = [renamed.get(name, name) for name in channels]
    quantize_products(graphs[role].graph, set(channels))
    if has_encoder and MAPS_ROLE in graphs:
        # The maps have to be those that the encoder computes.
        quantize_products(graphs[MAPS_ROLE].graph, set(channels))
    return channels


def _is_product(graph: ir.Graph, weight: str) -> bool:
    """Whether a graph has a weight of two axes, as a product's is."""
    return weight in graph.initializers and len(static_shape(graph.initializers[weight])) == 2


def _refuse_experts(models: Iterable[ir.Model], plan: Plan) -> None:
    if not any(node.op_type == "MoE" for model in models for node in model.graph):
        return
    if plan.is_for_webgpu:
        # onnxruntime-ep-webgpu 0.4 has no kernel for MoE, and its QMoE computes wrong values
        raise OptionError(
            "device: WebGPU has no kernel that computes a mixture of experts right. Choose cpu or "
            "cuda."
        )
    if plan.options.attention == "portable":
        raise OptionError(
            "attention: a mixture of experts cannot be portable, because no standard operators "
            "replace onnxruntime's node. Leave the option out."
        )
