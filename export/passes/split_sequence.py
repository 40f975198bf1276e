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
    sizes = ir.convenience.get_const_tensor(node.inputs[1]) if node.inputs[1] else None
    readers = [use.node for use in node.outputs[0].uses()]
    indices = [_index(reader) for reader in readers]
    if sizes is None or None in indices or sizes.shape.rank() != 1:
        return False  # Case 2
    split = ir.Node(
        "",
        "Split",
        [node.inputs[0], node.inputs[1]],
        [ir.AttrInt64("axis", node.attributes.get_int("axis", 0))],
        num_outputs=int(sizes.size),
    )
    graph.insert_before(node, split)
    for reader, index in zip(readers, indices, strict=True):
        old, new = reader.outputs[0], split.outputs[index or 0]
        new.name, new.shape, new.type = old.name, old.shape, old.type
        old.replace_all_uses_with(new)
        graph.remove(reader, safe=True)
    graph.remove(node, safe=True)
    return True


def _index(reader: ir.Node) -> int | None:
    """The constant index of a SequenceAt, or None."""
    if reader.op_type != "SequenceAt" or reader.inputs[1] is None:
        return None
    tensor = ir.convenience.get_const_tensor(reader.inputs[1])
    return None if tensor is None else int(tensor.numpy())
