"""Read a size from one tensor, wherever it is needed.

Spec: ai.onnx Shape, version 15 and later.
"""

import onnx_ir as ir


class ShareShapes(ir.passes.InPlacePass):
    """Replace Shape nodes over axes of the same names and sizes with the first of them.

    The trace names every axis that varies, so equal names are equal sizes. Every layer then shares
    what is computed from sizes.

    Case 1: every axis has a size or a name, and an earlier node reads the same: rewrite.
    Case 2: otherwise: keep.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        first: dict[tuple[str, ...], ir.Value] = {}
        modified = False
        for node in list(model.graph):
            axes = _axes(node) if node.op_type == "Shape" else None
            if axes is None:
                continue  # Case 2
            if axes not in first:
                first[axes] = node.outputs[0]
                continue
            node.outputs[0].replace_all_uses_with(first[axes], replace_graph_outputs=True)
            model.graph.remove(node, safe=True)
            modified = True
        return ir.passes.PassResult(model, modified)


def _axes(node: ir.Node) -> tuple[str, ...] | None:
    value = node.inputs[0]
    if value is None or value.shape is None:
        return None
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end")
    axes = value.shape[start:end]
    sizes = [axis if isinstance(axis, int) else axis.value for axis in axes]
    return None if None in sizes else tuple(map(str, sizes))
