"""Graphs of one operator that no export writes: each has to be refused before onnxruntime sees it.

    python -m tests.hostile.fuzz_operators --seed 7 --count 10000

The operators are all that onnxruntime and ONNX have a schema of, and some that nobody has, with
inputs, outputs and attributes at random. A quarter are operators that exports do write: of these
some may be taken. Nothing is loaded, so one process does all of it.
"""

import argparse
import json
import secrets
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper
from tests.hostile import bundles
from tests.hostile.operators import attribute_names, random_operator
from tests.hostile.tensors import random_tensor
from tests.hostile.traps import join
from tests.nonsense import FLOATS, INTEGERS, STRINGS

from ortolan.runtime.bundle.graph_checks import check_graph
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.manifest_file import decode
from ortolan.runtime.errors import GraphError
from ortolan.runtime.graph.rules import read
from ortolan.runtime.graph.vocabulary import vocabulary

__all__ = ["fuzz"]


def fuzz(seed: int, count: int) -> list[dict[str, Any]]:
    """Check graphs, print how many were refused, and give those that were not."""
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
        outcome, said = _outcome(model.SerializeToString(), manifest)
        domain = node.domain if node.domain in _KNOWN_DOMAINS else "another domain"
        counts[f"{outcome}: {'written by exports' if is_known else domain or 'ai.onnx'}"] += 1
        if outcome == "untyped" or (outcome == "taken" and not is_known):
            findings.append({"number": number, "kind": outcome, "said": said, "node": f"{node}"})
            print(json.dumps(findings[-1]), flush=True)
    seconds = time.monotonic() - started
    for name in sorted(counts):
        print(f"{counts[name]:>8} {name}")
    print(f"{count} graphs in {seconds:.0f} s")
    return findings


_KNOWN_DOMAINS = ("", "com.microsoft", "ai.onnx.ml")


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
    """A node of an operator of the vocabulary, or outside of it, without inputs."""
    known = sorted(vocabulary())
    domain, op_type = random_operator(random)
    while not is_known and f"{domain or 'ai.onnx'}::{op_type}" in known:
        domain, op_type = random_operator(random)
    if is_known:
        domain, _, op_type = random.choice(known).rpartition("::")
        domain = "" if domain == "ai.onnx" else domain
    outputs = [f"made.{place}" for place in range(random.choice([1, 1, 1, 2, 3, 9]))]
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
    made: AttributeProto = helper.make_attribute(name, value)
    return made


def _insert(random: Random, model: ModelProto, node: NodeProto) -> None:
    """Give a node inputs, of constants or of the graph, and let the graph depend on it."""
    held = [tensor.name for tensor in model.graph.initializer]
    for place in range(random.choice([0, 1, 1, 2, 2, 3, 5, 12])):
        tensor: TensorProto = random_tensor(random, f"given.{place}")
        model.graph.initializer.append(tensor)
        node.input.append(random.choice([tensor.name, tensor.name, "", random.choice(held)]))
    model.graph.node.append(node)
    join(model, node.output[0])


def main() -> int:
    """Run as the arguments say; 1 where something was taken."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, help="a new one by default")
    parser.add_argument("--count", type=int, default=10_000)
    given = parser.parse_args()
    seed = secrets.randbelow(1 << 32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    return int(bool(fuzz(seed, given.count)))


if __name__ == "__main__":
    sys.exit(main())
