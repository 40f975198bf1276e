"""Bundles of which one weight is another, with a manifest that knows it: no hash tells."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortolan.runtime import open_bundle
from ortolan.runtime.bundle.manifest import NAME
from ortolan.runtime.bundle.manifest_file import encode


def damage(path: Path, name: str, change: Callable[[NDArray[Any]], None]) -> None:
    """Change a tensor of a bundle in place, and its manifest.

    Args:
        path: folder of the bundle.
        name: of the tensor in a graph.
        change: gets the tensor, in a type of NumPy, and writes into it.
    """
    bundle = open_bundle(path)
    tensors = (each for graph in bundle.graphs.values() for each in graph.external)
    tensor = next(each for each in tensors if each.name == name)
    data = bytearray((path / tensor.file).read_bytes())
    part = slice(tensor.offset, tensor.offset + tensor.length)
    values = np.frombuffer(data[part], tensor.dtype).reshape(tensor.dims).copy()
    change(values)
    data[part] = values.tobytes()
    (path / tensor.file).write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    files = tuple(
        msgspec.structs.replace(file, sha256=digest) if file.name == tensor.file else file
        for file in bundle.manifest.files
    )
    (path / NAME).write_bytes(encode(msgspec.structs.replace(bundle.manifest, files=files)))
