"""The smallest complete bundle: every kind of file, and a graph of six nodes over zeros.

The graph is never run.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from ortolan.runtime.bundle.manifest import (
    NAME,
    SCHEMA,
    File,
    Graph,
    Host,
    Manifest,
    Provenance,
    SessionSettings,
    State,
    Tokens,
)
from ortolan.runtime.bundle.manifest_file import encode

WIDTH, HEADS, KV_HEADS, HEAD_WIDTH, VOCABULARY, CAPACITY = 32, 4, 2, 8, 24, 16

WEIGHTS = {
    "embedding": (VOCABULARY, WIDTH),
    "qkv": (WIDTH, (HEADS + 2 * KV_HEADS) * HEAD_WIDTH),
    "head": (WIDTH, VOCABULARY),
}

BLOB = b"".join(bytes(4 * rows * columns) for rows, columns in WEIGHTS.values())
BLOB_NAME = f"weights-{hashlib.sha256(BLOB).hexdigest()[:16]}.bin"


def write(folder: Path, contents: dict[str, bytes] | None = None) -> Manifest:
    """Write the bundle; `contents` replaces some files."""
    files = files_of(model()) | (contents or {})
    manifest = manifest_of(files)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / NAME).write_bytes(encode(manifest))
    return manifest


def files_of(graph: ModelProto) -> dict[str, bytes]:
    return {
        "certificate.json": b"{}",
        "certificate.bin": b"arrays",
        "decoder.onnx": graph.SerializeToString(),
        "tokenizer.json": b'{"version": "1.0"}',
        BLOB_NAME: BLOB,
    }


def described(files: Mapping[str, bytes]) -> tuple[File, ...]:
    """Return the entries of files in a manifest."""
    return tuple(
        File(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        for name, data in sorted(files.items())
    )


def manifest_of(files: Mapping[str, bytes]) -> Manifest:
    return manifest(
        files,
        context_length=CAPACITY,
        vocab_size=VOCABULARY,
        graphs={"decoder": Graph(file="decoder.onnx")},
        states=cache_states(1, KV_HEADS, HEAD_WIDTH),
        weights=(BLOB_NAME,),
        tokens=Tokens(bos=1, eos=(2, 3), pad=0),
    )


def manifest(files: Mapping[str, bytes], **fields: Any) -> Manifest:
    """Return the manifest of a decoder in fp32 with these files; `fields` are the others."""
    appends = any(state.update == "append" for state in fields.get("states", ()))
    defaults: dict[str, Any] = {
        "schema": SCHEMA,
        "host": Host(
            session=SessionSettings(disabled_optimizers=(), environment={}),
            onnxruntime="1.31.1",
            query_heads=2,
            cache="grows" if appends else None,
        ),
        "kind": "decoder",
        "precision": "fp32",
        "attention": "fused",
        "devices": ("cpu",),
        "states": (),
        "weights": (),
        "tokens": Tokens(),
        "tokenizer": "tokenizer.json" if "tokenizer.json" in files else None,
        "certificate": "certificate.json",
        "files": described(files),
        "provenance": Provenance(
            source_sha256="0" * 64, model_type="tiny", versions={"ortolan": "0.1.0"}
        ),
    }
    return Manifest(**defaults | fields)


def cache_states(layers: int, heads: int, width: int) -> tuple[State, ...]:
    """Return the states of a KV cache."""
    return tuple(
        State(
            name=f"{layer}.{part}",
            input=f"past_key_values.{layer}.{part}",
            output=f"present.{layer}.{part}",
            shape=("batch", heads, "capacity", width),
            dtype="float32",
            update="append",
        )
        for layer in range(layers)
        for part in ("key", "value")
    )


def model() -> ModelProto:
    value = helper.make_tensor_value_info
    states = cache_states(1, KV_HEADS, HEAD_WIDTH)
    graph = helper.make_graph(
        _nodes(),
        "tiny",
        [
            value("input_ids", TensorProto.INT64, ["batch", "sequence"]),
            value("seqlens_k", TensorProto.INT32, ["batch"]),
            value("total_sequence_length", TensorProto.INT32, []),
            value("logit_positions", TensorProto.INT64, ["batch", "rows"]),
            *(value(state.input, TensorProto.FLOAT, state.shape) for state in states),
        ],
        [
            value("logits", TensorProto.FLOAT, ["batch", "rows", VOCABULARY]),
            *(value(state.output, TensorProto.FLOAT, state.shape) for state in states),
        ],
        initializer=_initializers(),
    )
    return model_of(graph)


def model_of(graph: GraphProto) -> ModelProto:
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _nodes() -> list[NodeProto]:
    node = helper.make_node
    caches = ["past_key_values.0.key", "past_key_values.0.value"]
    attention = node(
        "GroupQueryAttention",
        ["projected", "", "", *caches, "seqlens_k", "total_sequence_length"],
        ["attended", "present.0.key", "present.0.value"],
        name="attention.0",
        domain="com.microsoft",
        num_heads=HEADS,
        kv_num_heads=KV_HEADS,
        scale=0.25,
        local_window_size=-1,
    )
    return [
        node("Gather", ["embedding", "input_ids"], ["embedded"], name="embed"),
        node("MatMul", ["embedded", "qkv"], ["projected"], name="project"),
        attention,
        node("Unsqueeze", ["logit_positions", "last_axis"], ["indices"], name="indices"),
        node("GatherND", ["attended", "indices"], ["rows"], name="rows", batch_dims=1),
        node("MatMul", ["rows", "head"], ["logits"], name="logits"),
    ]


def _initializers() -> list[TensorProto]:
    tensors = [helper.make_tensor("last_axis", TensorProto.INT64, [1], [-1])]
    offset = 0
    for name, (rows, columns) in WEIGHTS.items():
        length = 4 * rows * columns
        tensors.append(external(name, (rows, columns), BLOB_NAME, offset, length))
        offset += length
    return tensors


def external(
    name: str,
    dims: tuple[int, ...],
    location: str,
    offset: int,
    length: int,
    dtype: int = TensorProto.FLOAT,
) -> TensorProto:
    """Return a tensor whose bytes are in another file."""
    tensor = TensorProto(name=name, data_type=dtype, dims=dims)
    tensor.data_location = TensorProto.EXTERNAL
    for key, entry in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=f"{entry}")
    return tensor
