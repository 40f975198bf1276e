"""Changes files of a bundle and corrects its manifest, so that no hash gives them away."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from tests.runtime.tiny_bundle import described

from ortolan.runtime import open_bundle
from ortolan.runtime.bundle.manifest import NAME

Json = Any


def reseal(path: Path) -> None:
    """Write the sizes and hashes of the files in a folder to its manifest."""
    manifest = json.loads((path / NAME).read_text())
    contents = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
    listed = {name: data for name, data in contents.items() if not name.endswith(".seal")}
    del listed[NAME]
    manifest["files"] = msgspec.to_builtins(described(listed))
    (path / NAME).write_text(json.dumps(manifest))


def edit_json(path: Path, name: str, edit: Callable[[Json], object]) -> None:
    """Edit a JSON file of a bundle in place."""
    document = json.loads((path / name).read_text())
    edit(document)
    (path / name).write_text(json.dumps(document))
    reseal(path)


def put(*keys: str | int, value: object) -> Callable[[Json], None]:
    """Return an edit that sets the value at a path of keys."""

    def edit(document: Json) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = value

    return edit


def give_settings(graph: Path) -> None:
    """Give a graph settings of onnxruntime: a `metadata_props` of its ModelProto."""
    entry = b"\x0a\x0aort_config\x12\x02{}"
    graph.write_bytes(graph.read_bytes() + bytes([14 << 3 | 2, len(entry)]) + entry)


def damage(path: Path, name: str, change: Callable[[NDArray[Any]], None]) -> None:
    """Let `change` write into a tensor of a bundle."""
    bundle = open_bundle(path)
    tensors = (tensor for graph in bundle.graphs.values() for tensor in graph.external)
    tensor = next(tensor for tensor in tensors if tensor.name == name)
    data = bytearray((path / tensor.file).read_bytes())
    part = slice(tensor.offset, tensor.offset + tensor.length)
    values = np.frombuffer(data[part], tensor.dtype).reshape(tensor.dims).copy()
    change(values)
    data[part] = values.tobytes()
    (path / tensor.file).write_bytes(data)
    reseal(path)
