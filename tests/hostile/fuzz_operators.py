"""Adds random operators to a graph; foreign ones must be refused before onnxruntime sees them.

    python -m tests.hostile.fuzz_operators --seed 7 --count 10000

Operators are all those with a schema in onnxruntime or ONNX, and some unknown ones, with random
inputs, outputs and attributes. A quarter are operators of exports, of which some may be accepted.
Nothing is loaded, so everything runs in one process.
"""

import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper
from tests.hostile import bundles, command
from tests.hostile.operators import attribute_names, random_operator
from tests.hostile.tensor_changes import random_tensor
from tests.hostile.traps import join
from tests.nonsense import FLOATS, INTEGERS, STRINGS

from ortolan.runtime.bundle.graph_checks import check_graph
from ortolan.runtime.bundle.manifest import Manifest
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
    started = time.monotonic()
    for number in range(count):
        random = Random(f"{seed}/{number}")
        model = ModelProto.FromString(files["decoder.onnx"])
        is_known = random.random() < 0.25
        node = _node(random, is_known=is_known)
        _insert(random, model, node)
        outcome, message = _outcome(model.SerializeToString(), manifest)
        domain = node.domain if node.domain in _DOMAINS else "another domain"
        counts[f"{outcome}: {'written by exports' if is_known else domain or 'ai.onnx'}"] += 1
        if outcome == "untyped" or (outcome == "taken" and not is_known):
            command.add_finding(
                findings, number=number, kind=outcome, message=message, node=f"{node}"
            )
    seconds = time.monotonic() - started
    for name in sorted(counts):
        print(f"{counts[name]:>8} {name}")
    print(f"{count} graphs in {seconds:.0f} s")
    return findings


_DOMAINS = ("", "com.microsoft", "ai.onnx.ml")


def _outcome(data: bytes, manifest: Manifest) -> tuple[str, str]:
    try:
        check_graph("decoder", read(data, file="decoder.onnx"), manifest, file="decoder.onnx")
    except GraphError as error:
        return "refused", f"{error}"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return "untyped", f"{error!r} ({Path(where.filename).name}:{where.lineno})"
    return "taken", ""


def _node(random: Random, *, is_known: bool) -> NodeProto:
    """Return a node without inputs whose operator is in the vocabulary, or is not."""
    exported = sorted(vocabulary())
    domain, op_type = random_operator(random)
    while not is_known and f"{domain or 'ai.onnx'}::{op_type}" in exported:
        domain, op_type = random_operator(random)
    if is_known:
        domain, _, op_type = random.choice(exported).rpartition("::")
        domain = "" if domain == "ai.onnx" else domain
    outputs = [f"added.{place}" for place in range(random.choice([1, 1, 1, 2, 3, 9]))]
    node = helper.make_node(op_type, [], outputs, domain=domain)
    own = [*attribute_names().get((domain, op_type), ()), "axis", "x"]
    for name in random.sample(own, random.randint(0, min(3, len(own)))):
        node.attribute.append(_attribute(random, name))
    return node


def _attribute(random: Random, name: str) -> AttributeProto:
    value = random.choice(
        [
            random.choice(INTEGERS),
            random.choice(FLOATS),
            random.choice(STRINGS[:9]),
            random.choices(INTEGERS, k=3),
            random.choices(FLOATS, k=2),
            random_tensor(random, name),
        ]
    )
    attribute: AttributeProto = helper.make_attribute(name, value)
    return attribute


def _insert(random: Random, model: ModelProto, node: NodeProto) -> None:
    """Add inputs to a node, and make the output of the graph depend on it."""
    constants = [tensor.name for tensor in model.graph.initializer]
    for place in range(random.choice([0, 1, 1, 2, 2, 3, 5, 12])):
        tensor: TensorProto = random_tensor(random, f"input.{place}")
        model.graph.initializer.append(tensor)
        node.input.append(random.choice([tensor.name, tensor.name, "", random.choice(constants)]))
    model.graph.node.append(node)
    join(model, node.output[0])


def main() -> int:
    options = command.parser(__doc__, count=10_000).parse_args()
    return int(bool(fuzz(command.pick_seed(options.seed), options.count)))


if __name__ == "__main__":
    sys.exit(main())
