"""Mutants: bundles with one to three changes, and with sizes and hashes corrected.

Correct hashes let a mutant reach the code behind that check, as a deliberate attack would. A mutant
is determined by the kind of bundle, a seed and a number.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.hostile import file_changes
from tests.hostile.bundles import Files
from tests.hostile.documents import change_document, flip_bytes
from tests.hostile.graph_changes import change_graph

from ortolan.runtime.errors import GraphError
from ortolan.runtime.graph.rules import read

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A changed bundle.

    Attributes:
        name: `kind/seed/number`.
        files: of the bundle.
        changes: in words.
    """

    name: str
    files: Files
    changes: tuple[str, ...]

    @property
    def kind(self) -> str:
        return self.name.partition("/")[0]


def mutant(original: Files, name: str) -> Mutant:
    """Return the mutant of a name; the number `-` stands for no change."""
    random, files = Random(name), dict(original)
    if name.endswith("/-"):
        return Mutant(name=name, files=files, changes=())
    count = random.choice([1, 1, 1, 2, 2, 3])
    areas = random.choices(list(_AREAS), [weight for weight, _ in _AREAS.values()], k=count)
    # the manifest is changed last, since mending rewrites it
    changes = [_changed(random, files, area) for area in areas if area != "manifest"]
    if random.random() < 0.95:
        mend(files, names_operators=random.random() < 0.05)
    changes += [_changed(random, files, area) for area in areas if area == "manifest"]
    return Mutant(name=name, files=files, changes=tuple(changes))


def mend(files: Files, *, names_operators: bool = False) -> None:
    """Correct the sizes and hashes in the manifest.

    Seals of packed weights stay wrong, since only the user of this machine can make them.

    Args:
        files: of a bundle.
        names_operators: also let the manifest declare its custom operators, which the bundle's
            users here do not trust.
    """
    manifest = json.loads(files[MANIFEST])
    if names_operators:
        manifest["foreign_operators"] = sorted(_foreign_operators(files))
    for entry in manifest["files"]:
        if entry["name"] in files:
            entry |= _described(files[entry["name"]])
    files[MANIFEST] = json.dumps(manifest).encode()


def _foreign_operators(files: Files) -> Iterator[str]:
    for name, data in files.items():
        if name.endswith(".onnx"):
            with contextlib.suppress(GraphError):
                yield from read(data, file=name).foreign


def write(files: Files, folder: Path) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _described(data: bytes) -> dict[str, object]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _changed(random: Random, files: Files, area: str) -> str:
    """Change a part of a bundle, or any bytes if an earlier change broke that part."""
    try:
        return _AREAS[area][1](random, files)
    except Exception:  # whatever a parser raises
        return file_changes.change_bytes(random, files)


def _graph(random: Random, files: Files) -> str:
    name = random.choice(sorted(name for name in files if name.endswith(".onnx")))
    how = flip_bytes if random.random() < 0.12 else change_graph
    files[name], summary = how(random, files[name])
    return f"{name}: {summary}"


def _manifest(random: Random, files: Files) -> str:
    choice, data = random.random(), files[MANIFEST]
    if choice < 0.03:
        files[MANIFEST] = data[: random.randrange(len(data))]
        return f"{MANIFEST}: cut to {len(files[MANIFEST])} bytes"
    how = flip_bytes if choice < 0.1 else change_document
    files[MANIFEST], summary = how(random, data)
    return f"{MANIFEST}: {summary}"


def _document(ending: str) -> "Area":
    def changed(random: Random, files: Files) -> str:
        (name,) = [name for name in files if name.endswith(ending)]
        files[name], summary = change_document(random, files[name])
        return f"{name}: {summary}"

    return changed


def _where(ending: str, area: "Area") -> "Area":
    """Return a change for bundles with such a file; others get a change of the graph."""

    def changed(random: Random, files: Files) -> str:
        has_one = any(name.endswith(ending) for name in files)
        return area(random, files) if has_one else _graph(random, files)

    return changed


Area = Callable[[Random, Files], str]

_AREAS: dict[str, tuple[int, Area]] = {
    "graph": (52, _graph),
    "manifest": (18, _manifest),
    "tokenizer": (10, _where("tokenizer.json", file_changes.change_tokenizer)),
    "template": (3, _where("chat_template.jinja", file_changes.change_template)),
    "certificate": (3, _where("certificate.bin", _document("certificate.json"))),
    "arrays": (3, _where("certificate.bin", file_changes.change_arrays)),
    "weights": (4, _where(".bin", file_changes.change_weights)),
    "packed": (3, _where("/packed.json", _document("/packed.json"))),
    "bytes": (4, file_changes.change_bytes),
}
"""Weight and change by area."""
