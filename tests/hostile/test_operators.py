"""Operators that no export writes are refused before onnxruntime sees them."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from onnx import ModelProto, helper
from tests.hostile import bundles
from tests.hostile.graph_changes import attribute_names, random_operator, random_tensor
from tests.hostile.traps import join
from tests.nonsense import FLOATS, INTEGERS, STRINGS

from ortolan.runtime.bundle.graph_checks import check_graph
from ortolan.runtime.bundle.manifest_file import decode
from ortolan.runtime.errors import GraphError
from ortolan.runtime.graph.rules import read
from ortolan.runtime.graph.vocabulary import vocabulary

GRAPHS = 600


def check(files: bundles.Files, model: ModelProto) -> None:
    graph = read(model.SerializeToString(), file="decoder.onnx")
    check_graph("decoder", graph, decode(files["manifest.json"]), file="decoder.onnx")


def add_node(random: Random, model: ModelProto, domain: str, op_type: str) -> None:
    """Let the output of a graph depend on an operator with random inputs and attributes."""
    constants = [tensor.name for tensor in model.graph.initializer]
    inputs = []
    for place in range(random.choice([0, 1, 1, 2, 2, 3, 5, 12])):
        tensor = random_tensor(random, f"input.{place}")
        model.graph.initializer.append(tensor)
        inputs.append(random.choice([tensor.name, tensor.name, "", random.choice(constants)]))
    outputs = [f"added.{place}" for place in range(random.choice([1, 1, 1, 2, 3, 9]))]
    node = helper.make_node(op_type, inputs, outputs, domain=domain)
    names = [*attribute_names().get((domain, op_type), ()), "axis", "x"]
    for name in random.sample(names, random.randint(0, min(3, len(names)))):
        node.attribute.append(helper.make_attribute(name, _value(random)))
    model.graph.node.append(node)
    join(model, outputs[0])


def _value(random: Random) -> Any:
    one = random.choice([INTEGERS, FLOATS, STRINGS[:9]])
    several = random.choices(random.choice([INTEGERS, FLOATS]), k=3)
    return random.choice([random.choice(one), several, random_tensor(random, "value")])


def test_foreign_operators_are_refused_and_others_checked(tmp_path: Path) -> None:
    """Operators are all those with a schema in onnxruntime or ONNX, and some unknown ones."""
    bundles.write(tmp_path, ("decoder",))
    files = bundles.read(tmp_path, "decoder")
    check(files, ModelProto.FromString(files["decoder.onnx"]))
    exported = vocabulary()
    for number in range(GRAPHS):
        random = Random(number)
        model = ModelProto.FromString(files["decoder.onnx"])
        domain, op_type = random_operator(random)
        if random.random() < 0.25:
            domain, _, op_type = random.choice(sorted(exported)).rpartition("::")
            domain = "" if domain == "ai.onnx" else domain
        add_node(random, model, domain, op_type)
        if f"{domain or 'ai.onnx'}::{op_type}" not in exported:
            with pytest.raises(GraphError):
                check(files, model)
            continue
        try:
            check(files, model)
        except GraphError as error:
            assert "\n" not in str(error)  # noqa: PT017 - some are accepted
