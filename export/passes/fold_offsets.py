"""A number that is added to a weight is added once, on export."""

import onnx_ir as ir

from ortolan.export.derived import derive
from ortolan.export.values import is_weight, number, producer, replace_value


class FoldOffsets(ir.passes.InPlacePass):
    """Add(w, number) becomes an initializer, such as for the norms of Gemma: x * (1 + w).

    Case 1: w is an initializer without data: rewritten.
    Case 2: as case 1, after a cast of w: the sum is cast.
    Case 3: anything else: the node stays.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        modified = False
        for node in list(model.graph):
            if node.op_type == "Add" and _rewrite(model.graph, node):
                modified = True
        return ir.passes.PassResult(model, modified)


def _rewrite(graph: ir.Graph, node: ir.Node) -> bool:
    offsets = [offset for value in node.inputs if (offset := number(value)) is not None]
    others = [value for value in node.inputs if value is not None and number(value) is None]
    (out,) = node.outputs
    if len(offsets) != 1 or len(others) != 1 or out.is_graph_output():
        return False  # Case 3
    cast = producer(others[0], "Cast")
    weight = others[0] if cast is None else cast.inputs[0]
    if weight is None or not is_weight(weight):
        return False  # Case 3
    sum_ = derive(graph, [weight], offset=offsets[0])
    if cast is None:
        out.replace_all_uses_with(sum_)
    else:
        wide = ir.Node("", "Cast", [sum_], list(cast.attributes.values()), num_outputs=1)
        graph.insert_before(node, wide)
        replace_value(out, wide.outputs[0])
    graph.remove(node, safe=True)
    return True
