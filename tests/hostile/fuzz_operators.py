"""Adds random operators to a graph; foreign ones must be refused before onnxruntime sees them.

    python -m tests.hostile.fuzz_operators --seed 7 --count 10000

Operators are all those with a schema in onnxruntime or ONNX, and some unknown ones, with random
inputs, outputs and attributes. A quarter are operators of exports, of which some may be accepted.
Nothing is loaded, so everything runs in one process.
"""

import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from onnx import ModelProto, NodeProto, helper
from tests.hostile import bundles, command
from tests.hostile.graph_changes import attribute_names, random_operator, random_tensor
from tests.hostile.traps import join
from tests.nonsense import FLOATS, INTEGERS, STRINGS

from ortolan.runtime.bundle.graph_checks import check_graph
from ortolan.runtime.bundle.manifest_file import decode
from ortolan.runtime.errors import GraphError
from ortolan.runtime.graph.rules import read
from ortolan.runtime.graph.vocabulary import vocabulary


def fuzz(seed: int, count: int) -> list[dict[str, Any]]:
    """Check graphs, print counts, and return the findings."""
    with tempfile.TemporaryDirectory() as work:
        bundles.write(Path(work), ("decoder",))
        files = bundles.read(Path(work), "decoder")
    manifest = decode(files["manifest.json"])
    counts: Counter[str] = Counter()
    findings: list[dict[str, Any]] = []
    for number in range(count):
        random = Random(f"{seed}/{number}")
        model = ModelProto.FromString(files["decoder.onnx"])
        is_known = random.random() < 0.25
        node = _add_node(random, model, is_known=is_known)
        outcome, message = "taken", ""
        try:
            graph = read(model.SerializeToString(), file="decoder.onnx")
            check_graph("decoder", graph, manifest, file="decoder.onnx")
        except GraphError as error:
            outcome, message = "refused", f"{error}"
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            outcome, message = "untyped", f"{error!r} ({where.filename}:{where.lineno})"
        counts[f"{outcome}: {'written by exports' if is_known else 'foreign'}"] += 1
        if outcome == "untyped" or (outcome == "taken" and not is_known):
            command.add_finding(
                findings, number=number, kind=outcome, message=message, node=f"{node}"
            )
    for name in sorted(counts):
        print(f"{counts[name]:>8} {name}")
    return findings


def _add_node(random: Random, model: ModelProto, *, is_known: bool) -> NodeProto:
    """Let the output of a graph depend on an operator that is in the vocabulary, or is not."""
    exported = sorted(vocabulary())
    domain, op_type = random_operator(random)
    while not is_known and f"{domain or 'ai.onnx'}::{op_type}" in exported:
        domain, op_type = random_operator(random)
    if is_known:
        domain, _, op_type = random.choice(exported).rpartition("::")
        domain = "" if domain == "ai.onnx" else domain
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
        node.attribute.append(helper.make_attribute(name, _attribute(random)))
    model.graph.node.append(node)
    join(model, outputs[0])
    return node


def _attribute(random: Random) -> Any:
    one = random.choice([INTEGERS, FLOATS, STRINGS[:9]])
    several = random.choices(random.choice([INTEGERS, FLOATS]), k=3)
    return random.choice([random.choice(one), several, random_tensor(random, "value")])


def main() -> int:
    options = command.parser(__doc__, count=10_000).parse_args()
    return int(bool(fuzz(command.pick_seed(options.seed), options.count)))


if __name__ == "__main__":
    sys.exit(main())
