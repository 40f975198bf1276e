import importlib
from collections.abc import Callable
from typing import Any

import msgspec
import onnx
import pytest
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, defs, helper
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
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
from ortolan.runtime.bundle.graph_checks import check_graph
from ortolan.runtime.errors import GraphError
from ortolan.runtime.graph import rules as onnx_graph
from ortolan.runtime.graph.vocabulary import vocabulary


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


def test_summary_lists_attention_and_counts_the_standard_domain_once() -> None:
    summary = checked(changed(set_attention("softcap", 30.0)))
    (node,) = summary.attention
    assert (node.name, node.operator) == (
        "attention.0",
        "com.microsoft::GroupQueryAttention",
    )
    assert node.attributes == {
        "num_heads": 4,
        "kv_num_heads": 2,
        "scale": 0.25,
        "softcap": 30.0,
        "local_window_size": -1,
    }
    other_name = changed(lambda model: setattr(model.graph.node[1], "domain", "ai.onnx"))
    assert checked(other_name).operators["ai.onnx::MatMul"] == 2
    unnamed = changed(lambda model: model.graph.input[0].type.tensor_type.shape.dim[1].Clear())
    assert checked(unnamed).inputs[0].shape == ("batch", "?")


# --- structures -------------------------------------------------------------------------------

CELL = ["x", "w", "r", "b", "", "h", "c"]


def cell_of(operator: str, inputs: list[str], outputs: int, **attributes: Any) -> Change:
    def change(model: ModelProto) -> None:
        names = [f"cell{number}" for number in range(outputs)]
        model.graph.node.append(helper.make_node(operator, inputs, names, **attributes))

    return change


def lstm(**attributes: Any) -> Change:
    return cell_of("LSTM", CELL, 3, **attributes)


def linear(q_heads: int, kv_heads: int) -> Change:
    return add_node("LinearAttention", "com.microsoft", q_num_heads=q_heads, kv_num_heads=kv_heads)


def int4_product(inputs: int) -> Change:
    return add_node("MatMulNBits", "com.microsoft", K=inputs)


MOST_HEADS = limits.MAX_RECURRENCE_HEADS

ACCEPTED: dict[str, Change] = {
    "an export": lambda model: None,
    "GatherND over many axes": add_node("GatherND", batch_dims=limits.MAX_TENSOR_RANK),
    "Split in one": add_node("Split", num_outputs=1),
    "Split": add_node("Split", axis=1),
    "wide product": int4_product(2**31 - 1),
    "most heads": set_attention("num_heads", limits.MAX_HEADS),
    "MultiHeadAttention": add_node("MultiHeadAttention", "com.microsoft", num_heads=8),
    "Attention": add_node("Attention", q_num_heads=8),
    "RNN": cell_of("RNN", CELL[:6], 2, hidden_size=4),
    "GRU": cell_of("GRU", CELL[:6], 2, hidden_size=4, linear_before_reset=1),
    "LSTM": lstm(hidden_size=4),
    **{
        f"linear attention, {heads}": linear(*heads)
        for heads in ((MOST_HEADS, MOST_HEADS), (1, MOST_HEADS), (2, 8), (8, 2))
    },
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_structures_of_exports_and_harmless_variants_of_crashes_are_accepted(name: str) -> None:
    checked(changed(ACCEPTED[name]))


CELL_ATTRIBUTES: dict[str, Any] = {
    **{"layout": 1, "direction": "bidirectional", "activations": ["Affine"] * 3, "clip": 0.0}
}

HEADS = [0, -1, limits.MAX_HEADS + 1, 2**31, 2**32, 2**62, -(2**63), 2.0, [4], "4", None]

REFUSED: dict[str, Change] = {
    "no graph": lambda model: model.ClearField("graph"),
    "settings": lambda model: model.metadata_props.add(key="ort_config", value="{}"),
    "training": lambda model: model.training_info.add(),
    "a sparse tensor": lambda model: model.graph.sparse_initializer.append(SPARSE),
    "many functions": lambda model: [
        model.functions.add() for _ in range(limits.MAX_FUNCTIONS + 1)
    ],
    "no opsets": lambda model: model.ClearField("opset_import"),
    "two standard opsets": lambda model: model.opset_import.add(domain="ai.onnx", version=24),
    "another domain": add_node("Identity", "custom"),
    "trees": add_node("TreeEnsemble", "ai.onnx.ml"),
    "a domain with a space": add_node("Identity", "com.microsoft "),
    **{name: add_node(name, body=SUBGRAPH) for name in ("Loop", "Scan", "Relu")},
    "If": add_node("If", then_branch=SUBGRAPH, else_branch=SUBGRAPH),
    "subgraphs": add_node("Relu", bodies=[SUBGRAPH]),
    "a sparse attribute": add_attribute(sparse_attribute("sparse_value", several=False)),
    "sparse attributes": add_attribute(sparse_attribute("sparse_values", several=True)),
    "a product of 2^31": int4_product(2**31),
    "a product of -2^31 - 1": int4_product(-(2**31) - 1),
    "repeated": lambda model: attention_of(model).attribute.add(name="scale", f=1, type=1),
    "repeated input": lambda model: model.graph.input.append(model.graph.input[0]),
    "a list": lambda model: model.graph.input.add(name="list").type.sequence_type.SetInParent(),
    "an output without a type": lambda model: model.graph.output.add(name="untyped"),
    "text": add_input("text", TensorProto.STRING, 1),
    "a negative size": add_input("negative", TensorProto.FLOAT, -1),
    **{f"num_heads = {value}": set_attention("num_heads", value) for value in HEADS},
    **{f"kv_num_heads = {value}": set_attention("kv_num_heads", value) for value in HEADS[:3]},
    "5 heads": set_attention("num_heads", 5),
    **{f"scale = {scale}": set_attention("scale", float(scale)) for scale in ("nan", "inf")},
    "MultiHeadAttention": add_node("MultiHeadAttention", "com.microsoft", num_heads=0),
    "Attention": add_node("Attention", q_num_heads=0),
    **{f"linear attention, {h}": linear(*h) for h in ((3, 8), (8, 3), (1, MOST_HEADS + 1))},
    **{f"LSTM, width {n}": lstm(hidden_size=n) for n in (0, limits.MAX_CELL_WIDTH + 1, 4.0)},
    **{
        f"LSTM, {name} = {value}": lstm(hidden_size=4, **{name: value})
        for name, value in CELL_ATTRIBUTES.items()
    },
    "LSTM of unknown width": lstm(),
    "LSTM, 4 outputs": cell_of("LSTM", CELL, 4, hidden_size=4),
    "LSTM, 6 inputs": cell_of("LSTM", CELL[:6], 3, hidden_size=4),
    "LSTM, lengths": cell_of("LSTM", [*CELL[:4], "lengths", "h", "c"], 3, hidden_size=4),
    "LSTM, 8 inputs": cell_of("LSTM", [*CELL, "p"], 3, hidden_size=4),
    "GRU": cell_of("GRU", CELL[:6], 2, hidden_size=4),
    "GRU, reset after": cell_of("GRU", CELL[:6], 2, hidden_size=4, linear_before_reset=0),
    "RNN, reset before": cell_of("RNN", CELL[:6], 2, hidden_size=4, linear_before_reset=1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_structures_outside_the_rules_are_rejected(name: str, snapshot: SnapshotAssertion) -> None:
    assert refusal(lambda: checked(changed(REFUSED[name]))) == snapshot


def with_function(operator: str, domain: str = "") -> bytes:
    node = helper.make_node(operator, ["x"], ["z"], domain=domain)
    opsets = [helper.make_opsetid("", 24)]
    function = helper.make_function("com.microsoft", "F", ["x"], ["z"], [node], opsets)
    return changed(lambda model: model.functions.append(function))


def test_functions_are_accepted_only_in_a_portable_bundle() -> None:
    summary = onnx_graph.read(with_function("Identity"))
    assert summary.functions == ("com.microsoft::F",)
    portable = msgspec.structs.replace(MANIFEST, attention="portable")
    check_graph("decoder", summary, portable, file="x.onnx")
    with pytest.raises(GraphError, match="no functions with 'fused' attention"):
        check_graph("decoder", summary, MANIFEST, file="x.onnx")


@pytest.mark.parametrize("domain", ["com.microsoft", "ai.onnx.ml"])
def test_functions_call_no_function_and_stay_in_known_domains(domain: str) -> None:
    with pytest.raises(GraphError, match="functions of standard operators"):
        onnx_graph.read(with_function("F", domain))


# --- limits -----------------------------------------------------------------------------------


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
    onnx_graph.read(changed(make(limit)))
    assert f"at most {limit}" in error_of(changed(make(limit + 1)))


def test_graph_file_over_its_size_is_rejected_unread() -> None:
    assert f"{limits.MAX_GRAPH_BYTES}" in error_of(bytes(limits.MAX_GRAPH_BYTES + 1))


# --- the vocabulary ---------------------------------------------------------------------------


def foreign(change: Change) -> tuple[str, ...]:
    return onnx_graph.read(changed(change)).foreign


def add_relu(name: str, dtype: int | None = None) -> Change:
    """Add a node over a new input, or over a value that nothing produces."""

    def change(model: ModelProto) -> None:
        if dtype is not None:
            model.graph.input.append(helper.make_tensor_value_info(name, dtype, ["batch"]))
        model.graph.node.append(helper.make_node("Relu", [name], ["more"]))

    return change


@pytest.mark.parametrize(
    ("change", "form"),
    [
        (add_node("Det"), "ai.onnx::Det: float -> float"),
        (add_node("QLinearSigmoid", "com.microsoft"), "com.microsoft::QLinearSigmoid: float -> "),
        (add_node("Abs", "com.microsoft"), "com.microsoft::Abs: float -> float"),
        (add_node("Gelu", approximate="exact"), "ai.onnx::Gelu: approximate = 'exact'"),
        (add_node("Gelu", approximate=1), "ai.onnx::Gelu: approximate = int"),
        (add_node("Relu", alpha=1.0), "ai.onnx::Relu: alpha = float"),
        (add_node("Add"), "ai.onnx::Add: float -> float"),
        (add_relu("extra", TensorProto.UINT16), "ai.onnx::Relu: uint16 -> uint16"),
        (add_relu("nothing"), "ai.onnx::Relu: unknown -> unknown"),
    ],
)
def test_forms_outside_the_vocabulary_are_named(change: Change, form: str) -> None:
    (got,) = foreign(change)
    assert got.startswith(form)


def test_exports_and_any_number_of_inputs_of_one_type_are_in_the_vocabulary() -> None:
    def change(model: ModelProto) -> None:
        node = helper.make_node("Concat", ["logits"] * 40, ["more"], axis=0)
        model.graph.node.append(node)

    assert foreign(change) == foreign(lambda model: None) == ()


def test_a_form_is_rejected_unless_the_manifest_names_it() -> None:
    summary = onnx_graph.read(changed(add_node("Det")))
    with pytest.raises(GraphError, match=r"ai\.onnx::Det"):
        check_graph("decoder", summary, MANIFEST, file="decoder.onnx")
    named = msgspec.structs.replace(MANIFEST, foreign_operators=summary.foreign)
    check_graph("decoder", summary, named, file="decoder.onnx")


def test_every_operator_is_defined_and_has_no_subgraph_and_is_not_random() -> None:
    state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    schemas = {f"{s.domain or 'ai.onnx'}::{s.name}": s for s in state.get_all_operator_schema()}
    standard = {f"ai.onnx::{schema.name}" for schema in defs.get_all_schemas()}
    for name, operator in vocabulary().items():
        assert name in schemas or name in standard
        assert operator.forms
        if name in schemas:
            assert set(operator.attributes) <= set(schemas[name].attributes)
    names = {name.partition("::")[2] for name in vocabulary()}
    assert not names & {"If", "Loop", "Scan", "SequenceMap", "RandomNormal", "RandomUniform"}
