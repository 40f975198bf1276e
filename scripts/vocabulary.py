"""Collect what exports write into `runtime/graph/vocabulary.json`: nothing else is loaded.

    python scripts/vocabulary.py            # export what is listed here, and write the data
    python scripts/vocabulary.py --check    # exit status 1 if the data is not exactly that

Every export is of a tiny model with random weights and takes some seconds. Add one where an export
writes what the list does not: `ortolan inspect` names it, and tests fail on it.
"""

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]


import ortolan  # noqa: E402
from families_table import CONTEXT, SPREAD, SPREADS, tiny_values  # noqa: E402
from family_checks import save_tiny  # noqa: E402
from ortolan.export import pipeline  # noqa: E402
from ortolan.export.options import ExportOptions, Via  # noqa: E402
from ortolan.runtime.graph.element_types import Node  # noqa: E402
from ortolan.runtime.graph.schema import text  # noqa: E402
from ortolan.runtime.graph.vocabulary import DATA, attribute_kind, form_of  # noqa: E402

DATA_FILE = ROOT / "runtime" / "graph" / DATA


@dataclass(frozen=True, kw_only=True)
class Export:
    """One export.

    Attributes:
        types: of tiny models.
        given: to `ortolan.export`, `options` apart.
        options: fields of `ExportOptions`.
    """

    types: tuple[str, ...]
    way: Via = "family"
    given: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


class Written(Exception):
    """The graphs are written; what comes afterwards is left out."""


def graphs(model_type: str, export: Export) -> Iterator[bytes]:
    """The graphs of an export of a tiny model."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spread = SPREADS.get(model_type, SPREAD)
        save_tiny(tiny_values(model_type, export.way), folder / "source", spread=spread)
        context = CONTEXT if export.way == "transformers" else None
        found: list[bytes] = []

        def stop(folder: Path) -> None:
            found.extend(path.read_bytes() for path in sorted(folder.glob("*.onnx")))
            raise Written

        with patch.object(pipeline, "replay", stop):
            try:
                ortolan.export(
                    folder / "source",
                    folder / "bundle",
                    options=ExportOptions(via=export.way, allow_poor=True, **export.options),
                    max_context=context,
                    **export.given,
                )
            except Written:
                pass
        yield from found


def collect(nodes: Iterable[Node]) -> dict[str, dict[str, Any]]:
    """Attributes and forms of nodes, by operator."""
    found: dict[str, dict[str, Any]] = {}
    for node in nodes:
        entry = found.setdefault(node.operator, {"attributes": {}, "forms": set()})
        entry["forms"].add(form_of(node))
        for attribute in node.message.attribute:
            kinds = entry["attributes"].setdefault(text(attribute.name), set())
            kinds.add(attribute_kind(attribute))
    return found


def encode(found: dict[str, dict[str, Any]]) -> bytes:
    """The data: a line for each operator, so that versions compare well."""
    lines = [
        f"  {json.dumps(operator)}: "
        + json.dumps(
            {
                "attributes": {
                    name: sorted(kinds) for name, kinds in sorted(entry["attributes"].items())
                },
                "forms": sorted(entry["forms"]),
            }
        )
        for operator, entry in sorted(found.items())
    ]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()
