import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import onnx
import pytest
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper
from tests.runtime import tiny_bundle
from tests.runtime.graph_changes import (
    DATA,
    MANIFEST,
    Change,
    add_node,
    changed,
    checked,
    error_of,
)

from ortolan.runtime import limits
from ortolan.runtime.bundle import graph_checks
from ortolan.runtime.bundle.graph_checks import check_graph
from ortolan.runtime.errors import GraphError
from ortolan.runtime.graph import rules as onnx_graph


def attention_of(model: ModelProto) -> NodeProto:
    node: NodeProto = model.graph.node[2]
    return node


def set_attention(name: str, value: object) -> Change:
    def change(model: ModelProto) -> None:
        node = attention_of(model)
        others = [attribute for attribute in node.attribute if attribute.name != name]
        del node.attribute[:]
        node.attribute.extend(others)
        if value is not None:
            node.attribute.append(helper.make_attribute(name, value))

    return change


SUBGRAPH = helper.make_graph([], "inner", [], [])

SPARSE = helper.make_sparse_tensor(
    helper.make_tensor("values", TensorProto.FLOAT, [1], [1.0]),
    helper.make_tensor("indices", TensorProto.INT64, [1], [0]),
    [4],
)


def sparse_attribute(name: str, *, several: bool) -> AttributeProto:
    attribute = AttributeProto(name=name)
    if several:
        attribute.sparse_tensors.append(SPARSE)
    else:
        attribute.sparse_tensor.CopyFrom(SPARSE)
    return attribute


def add_input(name: str, dtype: int, size: int) -> Change:
    value = helper.make_tensor_value_info(name, dtype, [size])
    return lambda model: model.graph.input.append(value)


def add_attribute(attribute: AttributeProto) -> Change:
    return lambda model: model.graph.node[0].attribute.append(attribute)


def test_summary_agrees_with_onnx() -> None:
    model = onnx.load_model_from_string(DATA)
    summary = checked(DATA)
    assert summary.ir_version == model.ir_version
    assert summary.opsets == {"ai.onnx": 24, "com.microsoft": 1}
    for values, protos in (
        (summary.inputs, model.graph.input),
        (summary.outputs, model.graph.output),
    ):
        assert [value.name for value in values] == [proto.name for proto in protos]
        for value, proto in zip(values, protos, strict=True):
            tensor = proto.type.tensor_type
            assert value.dtype == helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
            dims = tensor.shape.dim
            assert value.shape == tuple(dim.dim_param or dim.dim_value for dim in dims)
    assert summary.operators == {
        "ai.onnx::Gather": 1,
        "ai.onnx::GatherND": 1,
        "ai.onnx::MatMul": 2,
        "ai.onnx::Unsqueeze": 1,
        "com.microsoft::GroupQueryAttention": 1,
    }
    assert summary.functions == ()
    external = summary.external
    assert [(tensor.name, tensor.dims) for tensor in external] == list(tiny_bundle.WEIGHTS.items())
    assert {(tensor.file, tensor.dtype) for tensor in external} == {
        (tiny_bundle.BLOB_NAME, "float32")
    }
    assert external[0].offset == 0
    assert external[1].offset == external[0].length
    assert external[2].offset + external[2].length == len(tiny_bundle.BLOB)


def test_summary_lists_attention_with_its_attributes() -> None:
    (node,) = checked(changed(set_attention("softcap", 30.0))).attention
    assert node.name == "attention.0"
    assert node.operator == "com.microsoft::GroupQueryAttention"
    assert node.attributes == {
        "num_heads": 4,
        "kv_num_heads": 2,
        "scale": 0.25,
        "softcap": 30.0,
        "local_window_size": -1,
    }


def test_unnamed_and_absent_sizes_are_question_marks() -> None:
    def change(model: ModelProto) -> None:
        model.graph.input[0].type.tensor_type.shape.dim[1].Clear()

    assert checked(changed(change)).inputs[0].shape == ("batch", "?")


def test_standard_domain_is_counted_once_under_both_names() -> None:
    summary = checked(changed(lambda model: setattr(model.graph.node[1], "domain", "ai.onnx")))
    assert summary.operators["ai.onnx::MatMul"] == 2


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda model: model.ClearField("graph"), "without one"),
        (lambda model: model.metadata_props.add(key="ort_config", value="{}"), "ort_config"),
        (lambda model: model.training_info.add(), "training information"),
        (lambda model: model.graph.sparse_initializer.append(SPARSE), "sparse"),
        (lambda model: model.ClearField("opset_import"), "standard operators"),
        (lambda model: model.opset_import.add(domain="ai.onnx", version=24), "two of"),
        (add_node("Identity", "custom"), "custom::Identity"),
        (add_node("TreeEnsemble", "ai.onnx.ml"), "ai.onnx.ml"),
        (add_node("Identity", "com.microsoft "), "com.microsoft ::"),
        (add_node("Loop", body=SUBGRAPH), "Loop"),
        (add_node("Scan", body=SUBGRAPH), "Scan"),
        (add_node("If", then_branch=SUBGRAPH, else_branch=SUBGRAPH), "If"),
        (add_node("Relu", body=SUBGRAPH), "subgraph"),
        (add_node("Relu", bodies=[SUBGRAPH]), "subgraph"),
        (add_attribute(sparse_attribute("sparse_value", several=False)), "sparse"),
        (add_attribute(sparse_attribute("sparse_values", several=True)), "sparse"),
        (add_node("GatherND", batch_dims=-1), "batch_dims"),
        (add_node("GatherND", batch_dims=-(2**63)), "batch_dims"),
        (add_node("Split", num_outputs=2), "num_outputs"),
        (add_node("MatMulNBits", "com.microsoft", K=2**31), f"{2**31}"),
        (add_node("MatMulNBits", "com.microsoft", K=-(2**31) - 1), f"{-(2**31) - 1}"),
        (lambda model: attention_of(model).attribute.add(name="scale", f=1.0, type=1), "repeated"),
        (lambda model: model.graph.input.append(model.graph.input[0]), "repeated"),
        (lambda model: model.graph.input.add(name="list").type.sequence_type.SetInParent(), "list"),
        (lambda model: model.graph.output.add(name="untyped"), "untyped"),
        (add_input("text", TensorProto.STRING, 1), "'text'"),
        (add_input("negative", TensorProto.FLOAT, -1), "'negative'"),
    ],
)
def test_structures_outside_the_rules_are_rejected(change: Change, part: str) -> None:
    assert part in error_of(changed(change))


def test_harmless_variants_of_kernel_crashes_are_accepted() -> None:
    for change in (
        add_node("GatherND", batch_dims=limits.MAX_TENSOR_RANK),
        add_node("Split", num_outputs=1),
        add_node("Split", axis=1),
        add_node("MatMulNBits", "com.microsoft", K=2**31 - 1),
    ):
        checked(changed(change))


@pytest.mark.parametrize("name", ["num_heads", "kv_num_heads"])
@pytest.mark.parametrize(
    "value",
    [0, -1, limits.MAX_HEADS + 1, 2**31, 2**32, 2**62, -(2**63), 2.0, [4], "4", None],
    ids=str,
)
def test_head_counts_that_crash_a_kernel_are_rejected(name: str, value: object) -> None:
    assert f"'{name}'" in error_of(changed(set_attention(name, value)))


def linear(q_heads: int, kv_heads: int) -> Change:
    return add_node("LinearAttention", "com.microsoft", q_num_heads=q_heads, kv_num_heads=kv_heads)


def test_heads_of_linear_attention_may_share_keys_either_way() -> None:
    most = limits.MAX_RECURRENCE_HEADS
    for q_heads, kv_heads in ((most, most), (1, most), (2, 8), (8, 2)):
        checked(changed(linear(q_heads, kv_heads)))
    for q_heads, kv_heads in ((3, 8), (8, 3)):
        assert f"multiple of {kv_heads}" in error_of(changed(linear(q_heads, kv_heads)))
    assert "'kv_num_heads'" in error_of(changed(linear(1, most + 1)))


def test_heads_divide_and_are_bounded_and_scales_are_finite() -> None:
    (node,) = checked(changed(set_attention("num_heads", limits.MAX_HEADS))).attention
    assert node.attributes["num_heads"] == limits.MAX_HEADS
    assert "multiple of 2" in error_of(changed(set_attention("num_heads", 5)))
    for value in (float("nan"), float("inf")):
        assert "finite" in error_of(changed(set_attention("scale", value)))


@pytest.mark.parametrize("operator", ["com.microsoft::MultiHeadAttention", "ai.onnx::Attention"])
def test_head_counts_of_other_attention_are_bounded_too(operator: str) -> None:
    domain, op_type = operator.split("::")
    name = "q_num_heads" if domain == "ai.onnx" else "num_heads"
    assert name in error_of(changed(add_node(op_type, domain, **{name: 0})))
    _, node = checked(changed(add_node(op_type, domain, **{name: 8}))).attention
    assert node.attributes == {name: 8}


def function_bomb(levels: int) -> list[onnx.FunctionProto]:
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    calls = [
        [
            helper.make_node(f"F{level + 1}", ["x"], ["y"], domain="com.microsoft"),
            helper.make_node(f"F{level + 1}", ["y"], ["z"], domain="com.microsoft"),
        ]
        for level in range(levels)
    ]
    calls[-1] = [helper.make_node("Identity", ["x"], ["z"])]
    return [
        helper.make_function("com.microsoft", f"F{level}", ["x"], ["z"], nodes, opsets)
        for level, nodes in enumerate(calls)
    ]


def test_functions_are_rejected_in_a_fused_bundle_and_unknown_ones_in_a_portable_bundle() -> None:
    data = changed(lambda model: model.functions.extend(function_bomb(3)))
    assert "no functions with 'fused' attention" in error_of(data)
    portable = msgspec.structs.replace(MANIFEST, attention="portable")
    with pytest.raises(GraphError, match=r"com\.microsoft::F0"):
        check_graph("decoder", onnx_graph.read(data), portable, file="x.onnx")


def test_known_function_is_accepted_in_a_portable_bundle_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (function,) = function_bomb(1)
    sha256 = hashlib.sha256(function.SerializeToString()).hexdigest()
    monkeypatch.setattr(graph_checks, "KNOWN_FUNCTIONS", frozenset({sha256}))
    summary = onnx_graph.read(changed(lambda model: model.functions.append(function)))
    assert summary.functions == (("com.microsoft", "F0", sha256),)
    check_graph(
        "decoder", summary, msgspec.structs.replace(MANIFEST, attention="portable"), file="x.onnx"
    )
    with pytest.raises(GraphError, match="no functions"):
        check_graph("decoder", summary, MANIFEST, file="x.onnx")


def repeat(field: str, count: int) -> Change:
    def change(model: ModelProto) -> None:
        entries = getattr(model.graph, field)
        entry = entries[0]
        for index in range(count - len(entries)):
            copied = entries.add()
            copied.CopyFrom(entry)
            copied.name = f"copy{index}"

    return change


def chain(count: int) -> Change:
    """Add a chain of nodes."""

    def change(model: ModelProto) -> None:
        for index in range(count - len(model.graph.node)):
            taken = f"link{index - 1}" if index else "logits"
            model.graph.node.append(helper.make_node("Relu", [taken], [f"link{index}"]))

    return change


def node_with_inputs(count: int) -> Change:
    return lambda model: model.graph.node.add(op_type="Concat").input.extend([""] * count)


def add_opsets(count: int) -> Change:
    def change(model: ModelProto) -> None:
        for index in range(count - len(model.opset_import)):
            model.opset_import.add(domain=f"d{index}", version=1)

    return change


@pytest.mark.parametrize(
    ("limit", "make"),
    [
        (limits.MAX_NODES, chain),
        (limits.MAX_INITIALIZERS, lambda n: repeat("initializer", n)),
        (limits.MAX_GRAPH_VALUES, lambda n: repeat("output", n)),
        (limits.MAX_NODE_EDGES, node_with_inputs),
        (limits.MAX_OPSETS, add_opsets),
    ],
)
def test_limit_is_accepted_and_one_more_is_not(limit: int, make: Callable[[int], Change]) -> None:
    checked(changed(make(limit)))
    assert f"at most {limit}" in error_of(changed(make(limit + 1)))


def test_graph_file_over_its_size_is_rejected_unread() -> None:
    assert f"{limits.MAX_GRAPH_BYTES}" in error_of(bytes(limits.MAX_GRAPH_BYTES + 1))


CELL = ["x", "w", "r", "b", "", "h", "c"]


def cell_of(operator: str, inputs: list[str], outputs: int, **attributes: Any) -> Change:
    def change(model: ModelProto) -> None:
        names = [f"cell{number}" for number in range(outputs)]
        model.graph.node.append(helper.make_node(operator, inputs, names, **attributes))

    return change


def test_recurrent_operators_are_accepted_as_exported() -> None:
    forms: list[tuple[str, int, int, dict[str, Any]]] = [
        ("RNN", 6, 2, {}),
        ("GRU", 6, 2, {"linear_before_reset": 1}),
        ("LSTM", 7, 3, {}),
    ]
    for operator, count, outputs, flags in forms:
        checked(changed(cell_of(operator, CELL[:count], outputs, hidden_size=4, **flags)))


@pytest.mark.parametrize(
    "change",
    [
        cell_of("LSTM", CELL, 3),
        cell_of("LSTM", CELL, 3, hidden_size=0),
        cell_of("LSTM", CELL, 3, hidden_size=limits.MAX_CELL_WIDTH + 1),
        cell_of("LSTM", CELL, 3, hidden_size=4.0),
        cell_of("LSTM", CELL, 3, hidden_size=4, layout=1),
        cell_of("LSTM", CELL, 3, hidden_size=4, direction="bidirectional"),
        cell_of("LSTM", CELL, 3, hidden_size=4, activations=["Affine"] * 3),
        cell_of("LSTM", CELL, 3, hidden_size=4, clip=0.0),
        cell_of("LSTM", CELL, 4, hidden_size=4),
        cell_of("LSTM", CELL[:6], 3, hidden_size=4),
        cell_of("LSTM", [*CELL[:4], "lengths", "h", "c"], 3, hidden_size=4),
        cell_of("LSTM", [*CELL, "p"], 3, hidden_size=4),
        cell_of("GRU", CELL[:6], 2, hidden_size=4),
        cell_of("GRU", CELL[:6], 2, hidden_size=4, linear_before_reset=0),
        cell_of("RNN", CELL[:6], 2, hidden_size=4, linear_before_reset=1),
    ],
)
def test_other_forms_of_recurrent_operators_are_rejected(change: Change) -> None:
    error_of(changed(change))
