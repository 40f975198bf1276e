"""Write the allow-list of operators, `runtime/graph/vocabulary.json`, from real exports.

    python scripts/vocabulary.py                    # export everything, then write the list
    python scripts/vocabulary.py --graphs FOLDER    # keep the graphs, or reuse those in FOLDER

Runs the exports of tests/export and, like scripts/families_table.py, one of each model type from
each kind of source, which takes half an hour. Exports in other tests may not use other operators
(`tests/quick_exports.py`).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tests import quick_exports  # noqa: E402 - the paths come first

from families_table import TYPES, measure  # noqa: E402
from ortolan.runtime.graph.element_types import typed_nodes  # noqa: E402
from ortolan.runtime.graph.schema import parse_model, text  # noqa: E402
from ortolan.runtime.graph.vocabulary import DATA, attribute_kind, form_of  # noqa: E402

DATA_FILE = ROOT / "runtime" / "graph" / DATA

TESTS = ("tests/export", "--ignore=tests/export/source/transformers")
"""The ignored tests export the same model types as this script."""


def export_all(folder: Path) -> None:
    """Write the graphs of all exports to a folder."""
    environment = os.environ | {quick_exports.GRAPHS: str(folder)}
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "slow or not slow", *TESTS]
    subprocess.run(tests, cwd=ROOT, env=environment, check=True)
    quick_exports.keep_graphs(folder)
    for way, model_types in TYPES.items():
        for model_type in model_types:
            row = measure(model_type, way)
            print(row.model_type, row.way, row.error, row.note, flush=True)


def collect(graphs: Iterable[bytes]) -> dict[str, dict[str, Any]]:
    """Collect attributes and forms of all nodes, by operator."""
    operators: dict[str, dict[str, Any]] = {}
    for data in graphs:
        for node in typed_nodes(parse_model(data).graph):
            entry = operators.setdefault(node.operator, {"attributes": {}, "forms": set()})
            entry["forms"].add(form_of(node))
            for attribute in node.message.attribute:
                kinds = entry["attributes"].setdefault(text(attribute.name), set())
                kinds.add(attribute_kind(attribute))
    return operators


def encode(operators: dict[str, dict[str, Any]]) -> str:
    """Format the list with one line per operator, for readable diffs."""
    lines = []
    for operator, entry in sorted(operators.items()):
        attributes = {name: sorted(kinds) for name, kinds in sorted(entry["attributes"].items())}
        row = {"attributes": attributes, "forms": sorted(entry["forms"])}
        lines.append(f"  {json.dumps(operator)}: {json.dumps(row)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> int:
    """Write the list."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--graphs",
        type=Path,
        metavar="FOLDER",
        help="folder of graphs to reuse, or to keep them in",
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.graphs or Path(temporary)
        folder.mkdir(exist_ok=True)
        if not any(folder.glob("*.onnx")):
            export_all(folder)
        data = encode(collect(path.read_bytes() for path in folder.glob("*.onnx")))
    DATA_FILE.write_text(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
