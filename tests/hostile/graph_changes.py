"""Changes to an ONNX graph of kinds that have crashed a kernel, or might."""

from collections.abc import Callable
from random import Random

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper
from tests.hostile.operators import random_operator
from tests.hostile.tensor_changes import change_initializer, random_tensor
from tests.hostile.traps import TRAPS
from tests.nonsense import FLOATS, INTEGERS, STRINGS

Change = Callable[[Random, ModelProto], str]


def change_graph(random: Random, data: bytes) -> tuple[bytes, str]:
    """Change one thing in a graph, and describe the change."""
    model = ModelProto.FromString(data)
    changes, weights = zip(*_CHANGES, strict=True)
    (change,) = random.choices(changes, weights)
    summary = change(random, model)
    return model.SerializeToString(), summary


def _attribute_value(random: Random, model: ModelProto) -> str:
    """Set an attribute to an extreme value of the same or another type."""
    node = random.choice(_with_attributes(model) or [_node(random, model)])
    if not node.attribute:
        return _attribute_added(random, model)
    attribute = random.choice(node.attribute)
    if attribute.type == AttributeProto.INTS and random.random() < 0.7:
        numbers = list(attribute.ints) or [0]
        numbers[random.randrange(len(numbers))] = random.choice(INTEGERS)
        attribute.ints[:] = numbers * random.choice([1, 1, 1, 2])
        return f"{node.op_type}.{attribute.name} = {numbers}"
    integers = attribute.type == AttributeProto.INT
    kind = AttributeProto.INT if integers == (random.random() < 0.9) else AttributeProto.FLOAT
    return f"{node.op_type}.{attribute.name} = {_set(random, attribute, kind)}"


def _set(random: Random, attribute: AttributeProto, kind: int) -> str:
    name = attribute.name
    value: object = random.choice(INTEGERS if kind == AttributeProto.INT else FLOATS)
    if random.random() < 0.05:
        value = random.choice([[1, 2], [0.5], "text", ["a"], random_tensor(random, "value")])
    attribute.CopyFrom(helper.make_attribute(name, value))
    return f"{value!r:.60}"


def _attribute_added(random: Random, model: ModelProto) -> str:
    node, other = _node(random, model), random.choice(_with_attributes(model) or [None])
    if other is not None and random.random() < 0.6:
        added = AttributeProto()
        added.CopyFrom(random.choice(other.attribute))
    else:
        names = ("axis", "to", "do_rotary", "K", "bits", "k_quant_type", "value_int", "fmod", "x")
        added = helper.make_attribute(random.choice(names), random.choice(INTEGERS))
    node.attribute.append(added)
    return f"{node.op_type} gets {added.name}"


def _attribute_removed(random: Random, model: ModelProto) -> str:
    nodes = _with_attributes(model)
    if not nodes:
        return _node_removed(random, model)
    node = random.choice(nodes)
    place = random.randrange(len(node.attribute))
    name = node.attribute[place].name
    del node.attribute[place]
    return f"{node.op_type} without {name}"


def _input_rewired(random: Random, model: ModelProto) -> str:
    """Rewire an input to another value, to none, or to one that does not exist."""
    node = _node(random, model)
    if not node.input:
        return _input_added(random, model)
    place, old = random.randrange(len(node.input)), list(node.input)
    node.input[place] = random.choice([*_values(model), "", "nowhere"])
    return f"{node.op_type} input {place}: {old[place]!r} -> {node.input[place]!r}"


def _input_added(random: Random, model: ModelProto) -> str:
    node = _node(random, model)
    count = random.choice([1, 1, 2, 4, 20, 300])
    node.input.extend(random.choices([*_values(model), ""], k=count))
    return f"{node.op_type} gets {count} inputs"


def _input_removed(random: Random, model: ModelProto) -> str:
    node = _node(random, model)
    if not node.input:
        return _node_removed(random, model)
    place = random.randrange(len(node.input))
    del node.input[place:]
    return f"{node.op_type} keeps {place} inputs"


def _outputs_changed(random: Random, model: ModelProto) -> str:
    node = _node(random, model)
    if random.random() < 0.5 or len(node.output) < 2:
        count = random.choice([1, 2, 8, 300])
        node.output.extend(f"more.{random.randrange(10**6)}" for _ in range(count))
        return f"{node.op_type} gets {count} outputs"
    node.output[random.randrange(len(node.output))] = random.choice([*_values(model), ""])
    return f"{node.op_type} outputs {list(node.output)}"


def _operator_changed(random: Random, model: ModelProto) -> str:
    """Choose another operator of the graph, or any."""
    node, other = _node(random, model), _node(random, model)
    old, domain, name = node.op_type, other.domain, other.op_type
    if random.random() < 0.4:
        domain, name = random_operator(random)
    node.domain, node.op_type = domain, name
    return f"{old} -> {domain or 'ai.onnx'}::{name}"


def _node_removed(random: Random, model: ModelProto) -> str:
    place = random.randrange(len(model.graph.node))
    summary = f"{model.graph.node[place].op_type} removed"
    del model.graph.node[place]
    return summary


def _node_copied(random: Random, model: ModelProto) -> str:
    """Copy a node, with other outputs or the same."""
    copy = NodeProto()
    copy.CopyFrom(_node(random, model))
    if random.random() < 0.8:
        copy.output[:] = [f"{name}.copy" for name in copy.output]
    nodes = list(model.graph.node)
    nodes.insert(random.randrange(len(nodes) + 1), copy)
    _set_nodes(model.graph, nodes)
    return f"{copy.op_type} copied to {list(copy.output)}"


def _nodes_reordered(random: Random, model: ModelProto) -> str:
    nodes = list(model.graph.node)
    first, second = (random.randrange(len(nodes)) for _ in range(2))
    nodes[first], nodes[second] = nodes[second], nodes[first]
    _set_nodes(model.graph, nodes)
    return f"nodes {first} and {second} exchanged"


def _value_type(random: Random, model: ModelProto) -> str:
    entry = random.choice([*model.graph.input, *model.graph.output])
    tensor = entry.type.tensor_type
    if random.random() < 0.4:
        tensor.elem_type = random.randint(0, 26)
        return f"{entry.name} of type {tensor.elem_type}"
    dims = tensor.shape.dim
    if not dims or random.random() < 0.2:
        dims.add(dim_value=random.choice(INTEGERS))
    elif random.random() < 0.2:
        del dims[random.randrange(len(dims)) :]
    elif random.random() < 0.5:
        random.choice(dims).dim_value = random.choice(INTEGERS)
    else:
        random.choice(dims).dim_param = random.choice(["batch", "sequence", "", "new"])
    return f"{entry.name} of shape {[d.dim_param or d.dim_value for d in dims]}"


def _values_changed(random: Random, model: ModelProto) -> str:
    side = random.choice(["input", "output"])
    entries = getattr(model.graph, side)
    entry = random.choice(entries)
    match random.randrange(4):
        case 0:
            entries.add().CopyFrom(entry)
            return f"{side} {entry.name} twice"
        case 1:
            name = random.choice(_values(model))
            entries.append(helper.make_tensor_value_info(name, random.randint(1, 16), ["batch", 2]))
            return f"{side} {name} added"
        case 2:
            old, entry.name = entry.name, random.choice([*_values(model), "new"])
            return f"{side} {old} is {entry.name}"
    name = entry.name
    entries.remove(entry)
    return f"{side} {name} removed"


def _model_field(random: Random, model: ModelProto) -> str:
    number = random.choice(INTEGERS)
    match random.randrange(5):
        case 0:
            model.ir_version = number
            return f"ir_version {number}"
        case 1:
            model.opset_import[0].version = random.choice([number, *range(1, 30)])
            return f"opset {model.opset_import[0].version}"
        case 2:
            model.opset_import.add(domain=random.choice(["", "com.microsoft", "x"]), version=1)
            return "an opset more"
        case 3:
            node = helper.make_node("Identity", ["a"], ["b"])
            opsets = [helper.make_opsetid("", 20)]
            name, domain = _node(random, model).op_type, random.choice(["", "com.microsoft", "x"])
            model.functions.append(helper.make_function(domain, name, ["a"], ["b"], [node], opsets))
            return f"a function {domain}::{name}"
    model.metadata_props.add(key=random.choice(STRINGS[:9]), value="x" * random.choice([1, 10**6]))
    return "metadata"


def _values(model: ModelProto) -> list[str]:
    graph = model.graph
    produced = [name for node in graph.node for name in node.output if name]
    constants = [tensor.name for tensor in graph.initializer]
    return [*produced, *constants, *(entry.name for entry in graph.input)]


def _node(random: Random, model: ModelProto) -> NodeProto:
    if not model.graph.node:
        model.graph.node.append(helper.make_node("Identity", [""], ["only"]))
    node: NodeProto = random.choice(model.graph.node)
    return node


def _with_attributes(model: ModelProto) -> list[NodeProto]:
    return [node for node in model.graph.node if node.attribute]


def _set_nodes(graph: GraphProto, nodes: list[NodeProto]) -> None:
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _initializer(random: Random, model: ModelProto) -> str:
    if not model.graph.initializer:
        return _node_removed(random, model)
    tensor: TensorProto = random.choice(model.graph.initializer)
    return change_initializer(random, tensor)


_CHANGES: tuple[tuple[Change, int], ...] = (
    (_attribute_value, 22),
    (_input_rewired, 14),
    (_initializer, 18),
    (_operator_changed, 10),
    (_attribute_added, 4),
    (_attribute_removed, 4),
    (_input_added, 4),
    (_input_removed, 3),
    (_outputs_changed, 3),
    (_node_removed, 2),
    (_node_copied, 3),
    (_nodes_reordered, 2),
    (_value_type, 4),
    (_values_changed, 4),
    (_model_field, 3),
    *TRAPS,
)
"""Changes and their weights."""
