import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper
from tests.runtime import tiny_bundle

from ortolan.runtime import Bundle, DeviceError, open_bundle
from ortolan.runtime.graph.schema import parse_model
from ortolan.runtime.inspect.placement import node_kinds, placement

GQA = "com.microsoft::GroupQueryAttention"

FLOAT, HALF, INT64, BOOL = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.INT64,
    TensorProto.BOOL,
)

node = helper.make_node


def bundle(folder: Path, graph: ModelProto | None = None) -> Bundle:
    """The tiny bundle, or one whose graph is another: it is opened, and never loaded."""
    opened = _opened(folder)
    if graph is None:
        return opened
    data = graph.SerializeToString()
    (folder / "bundle" / "decoder.onnx").write_bytes(data)
    files = tuple(
        file
        if file.name != "decoder.onnx"
        else msgspec.structs.replace(file, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        for file in opened.manifest.files
    )
    manifest = msgspec.structs.replace(opened.manifest, files=files)
    return Bundle(path=opened.path, manifest=manifest, graphs=opened.graphs)


def _opened(folder: Path) -> Bundle:
    tiny_bundle.write(folder / "bundle")
    return open_bundle(folder / "bundle")


def model(inputs: Mapping[str, int], nodes: list[NodeProto]) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, dtype, None) for name, dtype in inputs.items()],
        [],
    )
    made: ModelProto = helper.make_model(graph)
    return made


def kinds(inputs: Mapping[str, int], nodes: list[NodeProto]) -> dict[str, str]:
    counted = node_kinds(parse_model(model(inputs, nodes).SerializeToString()).graph)
    return {kind.operator.partition("::")[2]: kind.dtype for kind in counted}


def test_types_follow_the_nodes_from_the_inputs() -> None:
    found = kinds(
        {"x": HALF, "mask": BOOL},
        [
            node("Sigmoid", ["x"], ["y"]),
            node("Shape", ["y"], ["shape"]),
            node("Cast", ["shape"], ["sizes"], to=FLOAT),
            node("Neg", ["sizes"], ["negated"]),
            node("CastLike", ["negated", "x"], ["like"]),
            node("Less", ["like", "y"], ["less"]),
            node("Not", ["less"], ["more"]),
            node("Where", ["more", "like", "y"], ["chosen"]),
            node("Relu", ["chosen"], ["z"]),
        ],
    )
    assert found == {
        "Sigmoid": "float16",
        "Shape": "float16",
        "Cast": "int64",
        "Neg": "float32",
        "CastLike": "float32",
        "Less": "float16",
        "Not": "bool",
        "Where": "float16",
        "Relu": "float16",
    }


@pytest.mark.parametrize(
    ("attribute", "dtype"),
    [
        ({"value_float": 1.0}, "float32"),
        ({"value_ints": [1, 2]}, "int64"),
        ({"value": helper.make_tensor("t", HALF, [1], [1.0])}, "float16"),
    ],
)
def test_constants_have_a_type_and_are_no_nodes(attribute: dict[str, Any], dtype: str) -> None:
    found = kinds({}, [node("Constant", [], ["c"], **attribute), node("Identity", ["c"], ["same"])])
    assert found == {"Identity": dtype}


def test_lookups_of_codes_give_the_type_of_their_scales() -> None:
    codes = {"codes": TensorProto.UINT8, "ids": INT64, "scales": HALF}
    lookup = node("GatherBlockQuantized", ["codes", "ids", "scales"], ["x"], domain="com.microsoft")
    found = kinds(codes, [lookup, node("Relu", ["x"], ["y"])])
    assert found == {"GatherBlockQuantized": "float16", "Relu": "float16"}


def test_every_node_of_a_bundle_in_float32_has_a_kernel_on_the_cpu(tmp_path: Path) -> None:
    placed = placement(bundle(tmp_path), "cpu")
    assert placed.misplaced == ()
    assert (placed.placed, placed.shape_nodes) == (5, 1)


def test_attention_with_a_cache_in_float32_leaves_cuda_for_the_cpu(tmp_path: Path) -> None:
    (misplaced,) = placement(bundle(tmp_path), "cuda").misplaced
    assert (misplaced.graph, misplaced.operator, misplaced.dtype) == ("decoder", GQA, "float32")
    assert (misplaced.count, misplaced.fallback) == (1, "cpu")


def test_halves_compute_on_cuda_and_in_float32_on_the_cpu(tmp_path: Path) -> None:
    graph = model({"x": HALF, "w": HALF}, [node("MatMul", ["x", "w"], ["y"])])
    opened = bundle(tmp_path, graph)
    assert placement(opened, "cuda").misplaced == ()
    (misplaced,) = placement(opened, "cpu").misplaced
    assert misplaced.fallback == "float32"


def test_bfloat16_has_no_way_around_on_the_cpu(tmp_path: Path) -> None:
    kinds = {"x": TensorProto.BFLOAT16, "w": TensorProto.BFLOAT16}
    opened = bundle(tmp_path, model(kinds, [node("MatMul", ["x", "w"], ["y"])]))
    (misplaced,) = placement(opened, "cpu").misplaced
    assert misplaced.fallback == "none"


def test_what_neither_device_has_and_what_the_table_lacks_differ(tmp_path: Path) -> None:
    graph = model(
        {"x": TensorProto.BFLOAT16, "y": FLOAT},
        [node("ReduceL2", ["x"], ["n"]), node("Erf", ["y"], ["z"])],
    )
    found = placement(bundle(tmp_path, graph), "cuda").misplaced
    assert {each.operator: each.fallback for each in found} == {
        "ai.onnx::ReduceL2": "none",
        "ai.onnx::Erf": "unknown",
    }


def test_only_cpu_and_cuda_are_known(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="cpu or cuda"):
        placement(bundle(tmp_path), "tpu")
