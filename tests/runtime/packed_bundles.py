"""Tiny bundles in fp32, and with products in 4 bits, or in 8 for prefill.

The quantized one shares a tensor between embedding and head, as real ones do.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, load_model
from tests.runtime.tiny_bundle import described, external
from tests.runtime.tiny_decoder import (
    ALIGNMENT,
    BOS,
    EOS,
    VOCABULARY,
    WIDTH,
    tokenizer_json,
    write_bundle,
)

from ortolan.runtime.bundle import manifest_file
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.manifest import NAME, Tokens

BITS = 4


def write(
    folder: Path,
    kind: str,
    *,
    seed: int = 0,
    group: int = 32,
    has_text: bool = False,
    others: Mapping[str, bytes] = {},
) -> Bundle:
    """Write a bundle: `fp32`, `split`, `recurrent`, `recurrent-split`, `by-token`, `int4`,
    `int4-split`, `int4-by-token` or `int8-prefill`.

    Those by token are recurrent. The last one has products in 4 bits for decode steps. With a group
    size above 32, longer than a row of the embedding, the embedding stays float.
    """
    write_bundle(
        folder,
        split=kind.endswith("split") or kind == "int8-prefill",
        recurrent=kind.startswith("recurrent") or kind.endswith("by-token"),
        takes_one=kind.endswith("by-token"),
        seed=seed,
        tokenizer=tokenizer_json() if has_text else None,
        tokens=Tokens(bos=BOS, eos=(EOS,)) if has_text else None,
        others=others,
    )
    if kind.startswith("int"):
        _quantize(folder, group, is_scaled=kind == "int8-prefill")
    return open_bundle(folder)


def _quantize(folder: Path, group: int, *, is_scaled: bool) -> None:
    """Replace each MatMul by MatMulNBits over random codes, in all graphs of a bundle.

    With `is_scaled` the prefill graph has DynamicQuantizeMatMul instead.
    """
    manifest = manifest_file.decode((folder / NAME).read_bytes())
    old = folder / manifest.weights[0]
    blob = bytearray(old.read_bytes())
    names = [graph.file for graph in manifest.graphs.values()]
    models = {name: load_model(folder / name, load_external_data=False) for name in names}
    tensors = _quantized(models[names[0]], blob, group)
    scaled = _scaled(models[names[0]], blob) if is_scaled else []
    weights = f"weights-{hashlib.sha256(blob).hexdigest()[:16]}.bin"
    for name, model in models.items():
        is_prefill = is_scaled and name == manifest.graphs["prefill"].file
        _replace(model, scaled if is_prefill else tensors, weights, group)
        (folder / name).write_bytes(model.SerializeToString(deterministic=True))
    old.unlink()
    (folder / weights).write_bytes(blob)
    paths = [path for path in folder.iterdir() if path.name != NAME]
    files = described({path.name: path.read_bytes() for path in paths})
    graphs = dict(manifest.graphs)
    if is_scaled:
        graphs["prefill"] = msgspec.structs.replace(graphs["prefill"], min_new_tokens=2)
    changed = msgspec.structs.replace(manifest, weights=(weights,), files=files, graphs=graphs)
    (folder / NAME).write_bytes(manifest_file.encode(changed))


def _quantized(model: ModelProto, blob: bytearray, group: int) -> list[TensorProto]:
    """Append random codes and scales for each MatMul to the blob."""
    random = np.random.default_rng(0)
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    tensors = []
    for node in model.graph.node:
        if node.op_type == "MatMul":
            name = node.input[1]
            inner, outer = shapes[name]
            groups = -(-inner // group)
            codes = random.integers(0, 256, (outer, groups, group // 2), np.uint8)
            scales = random.uniform(0.02, 0.1, (outer, groups)).astype(np.float32)
            tensors.append(_append(blob, f"{name}.codes", codes, TensorProto.UINT8))
            tensors.append(_append(blob, f"{name}.scales", scales, TensorProto.FLOAT))
    if group > WIDTH:
        return tensors
    table = TensorProto()
    table.CopyFrom(next(tensor for tensor in tensors if tensor.name == "head.codes"))
    table.name = "table.codes"
    table.dims[:] = [VOCABULARY, WIDTH // 2]
    return [*tensors, table]


def _scaled(model: ModelProto, blob: bytearray) -> list[TensorProto]:
    """Append random 8-bit codes, and a scale for each output, for each MatMul to the blob."""
    random = np.random.default_rng(1)
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    tensors = []
    for name in (node.input[1] for node in model.graph.node if node.op_type == "MatMul"):
        codes = random.integers(-127, 128, shapes[name], np.int8)
        scales = random.uniform(0.001, 0.006, shapes[name][1]).astype(np.float32)
        tensors.append(_append(blob, f"{name}.codes", codes, TensorProto.INT8))
        tensors.append(_append(blob, f"{name}.scales", scales, TensorProto.FLOAT))
    return tensors


def _append(
    blob: bytearray, name: str, array: NDArray[np.generic], dtype: TensorProto.DataType
) -> TensorProto:
    blob += bytes(-len(blob) % ALIGNMENT)
    tensor = external(name, array.shape, "", len(blob), array.nbytes, dtype)
    blob += array.tobytes()
    return tensor


def _replace(model: ModelProto, tensors: list[TensorProto], weights: str, group: int) -> None:
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    nodes = [_node(node, tensors, shapes, group) for node in model.graph.node]
    used = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    del model.graph.initializer[:]
    model.graph.initializer.extend([*kept, *tensors])
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            del tensor.external_data[:]
            for key, value in (entries | {"location": weights}).items():
                tensor.external_data.add(key=key, value=value)


def _node(
    node: NodeProto, tensors: list[TensorProto], shapes: dict[str, tuple[int, ...]], group: int
) -> NodeProto:
    if node.op_type == "MatMul":
        name = node.input[1]
        codes = next(tensor for tensor in tensors if tensor.name == f"{name}.codes")
        if codes.data_type == TensorProto.INT8:
            return helper.make_node(
                "DynamicQuantizeMatMul",
                [node.input[0], f"{name}.codes", f"{name}.scales"],
                [node.output[0]],
                domain="com.microsoft",
            )
        return helper.make_node(
            "MatMulNBits",
            [node.input[0], f"{name}.codes", f"{name}.scales"],
            [node.output[0]],
            domain="com.microsoft",
            N=codes.dims[0],
            K=shapes[name][0],
            bits=BITS,
            block_size=group,
            accuracy_level=4,
        )
    if node.op_type == "Gather" and group <= WIDTH:
        return helper.make_node(
            "GatherBlockQuantized",
            ["table.codes", node.input[1], "head.scales"],
            [node.output[0]],
            domain="com.microsoft",
            gather_axis=0,
            quantize_axis=1,
            block_size=group,
            bits=BITS,
        )
    return node
