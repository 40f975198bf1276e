"""The operators and forms that a bundle may contain."""

import importlib

import msgspec
import pytest
from onnx import ModelProto, TensorProto, defs, helper
from tests.runtime.graph_changes import MANIFEST, Change, add_node, changed

from ortolan.runtime.bundle.graph_checks import check_graph
from ortolan.runtime.errors import GraphError
from ortolan.runtime.graph.rules import read
from ortolan.runtime.graph.vocabulary import vocabulary


def foreign(change: Change) -> tuple[str, ...]:
    return read(changed(change)).foreign


def test_the_vocabulary_covers_an_export() -> None:
    assert foreign(lambda model: None) == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (add_node("Det"), "ai.onnx::Det: float -> float"),
        (add_node("QLinearSigmoid", "com.microsoft"), "com.microsoft::QLinearSigmoid: float -> "),
        (add_node("Abs", "com.microsoft"), "com.microsoft::Abs: float -> float"),
        (add_node("Gelu", approximate="exact"), "ai.onnx::Gelu: approximate = 'exact'"),
        (add_node("Gelu", approximate=1), "ai.onnx::Gelu: approximate = int"),
        (add_node("Relu", alpha=1.0), "ai.onnx::Relu: alpha = float"),
        (add_node("Add"), "ai.onnx::Add: float -> float"),
    ],
    ids=["operator", "contrib", "domain", "text", "kind", "attribute", "arity"],
)
def test_forms_outside_the_vocabulary_are_named(change: Change, said: str) -> None:
    (form,) = foreign(change)
    assert form.startswith(said)


def test_a_type_outside_the_vocabulary_is_named() -> None:
    def change(model: ModelProto) -> None:
        extra = helper.make_tensor_value_info("extra", TensorProto.UINT16, ["batch"])
        model.graph.input.append(extra)
        model.graph.node.append(helper.make_node("Relu", ["extra"], ["more"]))

    assert foreign(change) == ("ai.onnx::Relu: uint16 -> uint16",)


def test_a_value_without_a_producer_has_no_type() -> None:
    def change(model: ModelProto) -> None:
        model.graph.node.append(helper.make_node("Relu", ["nothing"], ["more"]))

    assert foreign(change) == ("ai.onnx::Relu: unknown -> unknown",)


def test_any_number_of_inputs_of_one_type_is_one_form() -> None:
    def change(model: ModelProto) -> None:
        node = helper.make_node("Concat", ["logits"] * 40, ["more"], axis=0)
        model.graph.node.append(node)

    assert foreign(change) == ()


def test_a_form_is_rejected_unless_the_manifest_names_it() -> None:
    summary = read(changed(add_node("Det")))
    with pytest.raises(GraphError, match=r"ai\.onnx::Det"):
        check_graph("decoder", summary, MANIFEST, file="decoder.onnx")
    named = msgspec.structs.replace(MANIFEST, foreign_operators=summary.foreign)
    check_graph("decoder", summary, named, file="decoder.onnx")


def test_every_operator_is_one_that_onnx_or_onnxruntime_defines() -> None:
    state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    schemas = {f"{s.domain or 'ai.onnx'}::{s.name}": s for s in state.get_all_operator_schema()}
    standard = {f"ai.onnx::{schema.name}" for schema in defs.get_all_schemas()}
    for name, operator in vocabulary().items():
        assert name in schemas or name in standard
        assert operator.forms
        if name in schemas:
            assert set(operator.attributes) <= set(schemas[name].attributes)


def test_no_operator_has_a_subgraph_or_is_random() -> None:
    names = {name.partition("::")[2] for name in vocabulary()}
    assert not names & {"If", "Loop", "Scan", "SequenceMap", "RandomNormal", "RandomUniform"}
