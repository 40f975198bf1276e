"""Sizes of a converted model: bytes of its weight files, and bytes read per decoded token.

Counted alike for every tool: files with weights, without tokenizers, graphs and notes; and the part
of them that a decode step multiplies with. Tables of which a token needs one row, such as an untied
embedding, do not count as read, nor does the KV cache.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import gguf
import onnx
from onnx import TensorProto
from onnx.external_data_helper import ExternalDataInfo

WEIGHTS = ("*.bin", "*.onnx.data", "*.gguf", "*.safetensors")
LOOK_UPS = frozenset(("Gather", "GatherBlockQuantized", "GroupQueryAttention", "RotaryEmbedding"))
# Operators between OpenVINO's constants and the product that uses them.
UNPACKING = frozenset(("Convert", "Subtract", "Multiply", "Reshape"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of one model.

    Attributes:
        file_bytes: bytes of weight files.
        read_bytes: bytes that one token needs.
        formats: bytes by weight format, if the file mixes formats.
    """

    file_bytes: int
    read_bytes: int
    formats: Mapping[str, int]


def sizes_of(model: Path) -> Sizes:
    """Sizes of a converted model, in the format of its tool.

    Raises:
        ValueError: the folder has no weight files.
    """
    files = [file for pattern in WEIGHTS for file in model.glob(pattern)]
    files = [file for file in files if "tokenizer" not in file.name]
    if not files:
        raise ValueError(f"{model}: contains none of {', '.join(WEIGHTS)}.")
    file_bytes = sum(file.stat().st_size for file in files)
    return Sizes(
        file_bytes=file_bytes,
        read_bytes=file_bytes - looked_up_bytes(model),
        formats=formats_of(model / "model.gguf"),
    )


def looked_up_bytes(model: Path) -> int:
    """Bytes of weights that are only looked up, one row at a time."""
    graphs = sorted(model.glob("*.onnx"))
    if graphs:
        # Of two graphs over the same weights, the one for single tokens comes first.
        return tables_of_onnx(graphs[0])
    if (model / "model.gguf").exists():
        return tables_of_gguf(model / "model.gguf")
    if (model / "openvino_model.xml").exists():
        return tables_of_openvino(model / "openvino_model.xml")
    return 0


def tables_of_onnx(path: Path) -> int:
    """Bytes of external tensors that only look-ups use."""
    graph = onnx.load(path, load_external_data=False).graph
    looked_up: dict[tuple[int, int], bool] = {}
    readers = {name: node.op_type for node in graph.node for name in node.input}
    products = {name for node in graph.node if node.op_type not in LOOK_UPS for name in node.input}
    for tensor in graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL and tensor.name in readers:
            info = ExternalDataInfo(tensor)
            # Two names may share the same bytes: a head and the embedding tied to it.
            span = (info.offset or 0, info.length or 0)
            looked_up[span] = looked_up.get(span, True) and tensor.name not in products
    return sum(length for (_, length), only in looked_up.items() if only)


def tables_of_gguf(path: Path) -> int:
    """Bytes of the embedding, if the head is another tensor."""
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors}
    return sizes["token_embd.weight"] if "output.weight" in sizes else 0


def formats_of(path: Path) -> dict[str, int]:
    """Bytes of a GGUF file by format, largest first; empty if there is no such file.

    llama.cpp stores some matrices in more bits than the type of the file says, and in another
    format if rows are not a multiple of 256.
    """
    sizes: Counter[str] = Counter()
    for tensor in gguf.GGUFReader(path).tensors if path.exists() else ():
        sizes[tensor.tensor_type.name] += int(tensor.n_bytes)
    return dict(sizes.most_common())


def tables_of_openvino(path: Path) -> int:
    """Bytes of constants that only a Gather uses."""
    tree = ElementTree.parse(path)
    layers = {layer.attrib["id"]: layer for layer in tree.iterfind("./layers/layer")}
    followers: dict[str, list[str]] = {}
    for edge in tree.iterfind("./edges/edge"):
        followers.setdefault(edge.attrib["from-layer"], []).append(edge.attrib["to-layer"])
    return sum(
        int(data.attrib["size"])
        for name, layer in layers.items()
        if layer.attrib["type"] == "Const" and (data := layer.find("data")) is not None
        if set(readers_in_openvino(name, layers, followers)) == {"Gather"}
    )


def readers_in_openvino(
    name: str, layers: Mapping[str, ElementTree.Element], followers: Mapping[str, list[str]]
) -> Iterator[str]:
    """Yield the types of layers that use a layer, past the unpacking of low-bit weights."""
    for follower in followers.get(name, ()):
        kind = layers[follower].attrib["type"]
        if kind in UNPACKING:
            yield from readers_in_openvino(follower, layers, followers)
        else:
            yield kind
