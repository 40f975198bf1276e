"""Passes rewrite the graphs that they are made for, with equal results, and no others."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from tests.export.passes.fusions import FUSIONS
from tests.export.passes.graphs import assert_kept, normal, operators, parsed, rewritten, run
from tests.export.passes.simplifications import CAST, OFFSET, SIMPLIFICATIONS
from tests.tiny.transformers_types import tiny_config
from transformers import AutoModelForCausalLM, PreTrainedModel

from ortolan.export.derived import recipes_of
from ortolan.export.options import ExportOptions, Via
from ortolan.export.passes import tidy
from ortolan.export.passes.fold_constants import LARGEST, fold_constants, inline_constants
from ortolan.export.passes.rules import fold_casts, fold_offsets, select_booleans
from ortolan.export.source import open_exportable
from ortolan.runtime.bundle.manifest import Graph

PASSES = FUSIONS | SIMPLIFICATIONS


@pytest.mark.parametrize(
    ("name", "graph"), [(name, graph) for name, case in PASSES.items() for graph in case.rewritten]
)
def test_a_graph_is_rewritten_with_equal_results(name: str, graph: str) -> None:
    case = PASSES[name]
    text, after = case.rewritten[graph]
    model = parsed(text, **case.weights)
    model.graph.opset_imports.pop("com.microsoft")  # a pass that needs it adds it
    if "com.microsoft" in text:
        model.graph.opset_imports["com.microsoft"] = 1
    rewritten(case.make(), model, case.weights, atol=case.atol, **case.feeds)
    assert operators(model) == after.split()


@pytest.mark.parametrize(
    ("name", "graph"), [(name, graph) for name, case in PASSES.items() for graph in case.kept]
)
def test_another_graph_stays(name: str, graph: str) -> None:
    case = PASSES[name]
    assert_kept(case.make(), parsed(case.kept[graph], **case.weights))


def test_a_choice_between_booleans_becomes_logic() -> None:
    model = parsed("g (bool[8] c, bool[8] a, bool[1] b) => (bool[8] y) { y = Where (c, a, b) }")
    assert select_booleans(model).modified
    assert sorted(operators(model)) == ["And", "And", "Not", "Or"]
    condition, chosen = (np.arange(8) & bit > 0 for bit in (1, 2))
    for other in (False, True):
        (result,) = run(model, {}, c=condition, a=chosen, b=np.array([other]))
        np.testing.assert_array_equal(result, np.where(condition, chosen, other))


def test_a_cast_to_an_unknown_type_stays() -> None:
    nodes = "l = Mul (f, f) o = Constant <value_int = 3> () y = CastLike (o, l)"
    model = parsed(CAST.replace("NODES", nodes))
    model.graph[0].outputs[0].type = None
    assert_kept(fold_casts, model)


def test_a_number_added_after_a_cast_is_added_before_it() -> None:
    weight, x = normal(8).half(), normal(2, 8, seed=1).numpy()
    text = OFFSET.replace("more = Add (SUM)", "wide = Cast <to = 1> (w) more = Add (wide, one)")
    model = parsed(text, w=weight)
    assert fold_offsets(model).modified
    assert operators(model) == ["Cast", "Cast", "Mul"]
    expected = x * (1 + weight.numpy()).astype(np.float32)
    np.testing.assert_allclose(run(model, {"w": weight}, x=x)[0], expected, rtol=1e-3)


FOLDED = """
g (float[batch, 4] x, WEIGHTS) => (float[batch, 4] y) {
    two = Constant <value_float = 2.0> ()
    three = Constant <value_float = 3.0> ()
    six = Mul (two, three)
    scaled = Mul (table, six)
    there = Transpose <perm = [1, 0]> (x)
    back = Transpose <perm = [1, 0]> (there)
    weighed = Mul (back, w)
    y = Add (weighed, scaled)
}
"""


def test_constants_and_tables_are_folded_and_weights_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    weight, table = normal(4), torch.arange(4.0)
    model, x = parsed(FOLDED, w=weight, table=table), normal(2, 4, seed=1).numpy()
    before = run(model, {"w": weight, "table": table}, x=x)
    caplog.clear()
    fold_constants(model, {"table": table})
    assert not caplog.records
    assert operators(model) == ["Mul", "Add"]
    assert model.graph.initializers["w"].const_value is None
    inline_constants(model.graph)
    assert list(model.graph.initializers) == ["w"]
    np.testing.assert_allclose(run(model, {"w": weight}, x=x)[0], before[0], rtol=1e-6)


def test_a_tiny_number_that_is_added_stays() -> None:
    text = "e = Constant <value_float = 1e-8> () s = Add (x, e) y = Sqrt (s)"
    model = parsed(f"g (float[4] x) => (float[4] y) {{ {text} }}")
    fold_constants(model, {})
    assert operators(model) == ["Add", "Sqrt"]


def test_large_tables_and_those_of_several_axes_stay_initializers() -> None:
    tables = {"long": torch.ones(LARGEST + 1), "wide": torch.ones(2, 2), "short": torch.ones(2)}
    model = parsed("g (float[1] x, WEIGHTS) => (float[1] y) { y = Relu (x) }", **tables)
    for name, table in tables.items():
        model.graph.initializers[name].const_value = ir.tensor(table.numpy(), name=name)
    inline_constants(model.graph)
    assert list(model.graph.initializers) == ["long", "wide"]


def counted(folder: Path, via: Via) -> Counter[str]:
    """Number of nodes by operator, without constants."""
    source = open_exportable(folder, ExportOptions(via=via))
    model = tidy(source.trace("decoder", Graph(file="decoder.onnx"), torch.float32))
    assert bool(recipes_of([model])) or via == "family"
    return Counter(node.op_type for node in model.graph if node.op_type != "Constant")


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["gemma3_text", "gpt2", "llama", "qwen2", "qwen3"])
def test_a_model_of_transformers_has_only_the_nodes_of_its_family(
    model_type: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    config = tiny_config(model_type)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(tmp_path)
    assert not counted(tmp_path, "transformers") - counted(tmp_path, "family")
