"""SplitToSequence followed by SequenceAt becomes Split."""

import onnx_ir as ir


class SplitSequence(ir.passes.InPlacePass):
    """Give the parts of a split as plain outputs.

    PyTorch's `split` returns a list, which the exporter writes as a sequence of tensors; every
    part is then copied twice.

    Case 1: sizes and every index are constants: one Split replaces the nodes.
    Case 2: anything else: the nodes stay.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        modified = False
        for node in list(model.graph):
            if node.op_type == "SplitToSequence" and _rewrite(model.graph, node):
                modified = True
        return ir.passes.PassResult(model, modified)


def _rewrite(graph: ir.Graph, node: ir.Node) -> bool:
    sizes = _constant(node, 1)
    readers = [use.node for use in node.outputs[0].uses()]
    indices = [index for index in map(_index, readers) if index is not None]
    if sizes is None or sizes.shape.rank() != 1 or len(indices) < len(readers):
        return False  # Case 2
    if node.outputs[0].is_graph_output():
        return False  # Case 2
    split = ir.Node(
        "",
        "Split",
        node.inputs,
        [ir.AttrInt64("axis", node.attributes.get_int("axis", 0))],
        num_outputs=sizes.size,
    )
    graph.insert_before(node, split)
    for reader, index in zip(readers, indices, strict=True):
        old, new = reader.outputs[0], split.outputs[index]
        new.name, new.shape, new.type = old.name, old.shape, old.type
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        graph.remove(reader, safe=True)
    graph.remove(node, safe=True)
    return True


def _index(reader: ir.Node) -> int | None:
    """The constant index of a SequenceAt, or None."""
    tensor = _constant(reader, 1) if reader.op_type == "SequenceAt" else None
    return None if tensor is None else int(tensor.numpy())


def _constant(node: ir.Node, place: int) -> ir.TensorProtocol | None:
    """The constant that a node takes at a place, or None."""
    value = node.inputs[place] if place < len(node.inputs) else None
    return None if value is None else ir.convenience.get_const_tensor(value)
