import numpy as np
import onnx_ir as ir
import pytest
import torch
from tests.export.passes.graphs import normal, operators, parsed, run

from ortolan.export.passes.fold_constants import LARGEST, FoldConstants, InlineConstants

W = normal(4)

TEXT = """
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


def test_constants_and_tables_are_folded_and_weights_are_not() -> None:
    table = torch.arange(4.0)
    model = parsed(TEXT, w=W, table=table)
    x = normal(2, 4, seed=1).numpy()
    before = run(model, {"w": W, "table": table}, x=x)
    FoldConstants({"table": table})(model)
    assert operators(model) == ["Mul", "Add"]
    assert model.graph.initializers["w"].const_value is None
    InlineConstants()(model)
    assert list(model.graph.initializers) == ["w"]
    np.testing.assert_allclose(run(model, {"w": W}, x=x)[0], before[0], rtol=1e-6)


def test_a_tiny_number_that_is_added_stays() -> None:
    text = "e = Constant <value_float = 1e-8> () s = Add (x, e) y = Sqrt (s)"
    model = parsed(f"g (float[4] x) => (float[4] y) {{ {text} }}")
    FoldConstants({})(model)
    assert operators(model) == ["Add", "Sqrt"]


def test_weights_without_data_cause_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    FoldConstants({})(parsed("g (float[4] x, WEIGHTS) => (float[4] y) { y = Mul (x, w) }", w=W))
    assert not caplog.records


def test_large_tables_and_those_of_several_axes_stay_initializers() -> None:
    tables = {"long": torch.ones(LARGEST + 1), "wide": torch.ones(2, 2), "short": torch.ones(2)}
    model = parsed("g (float[1] x, WEIGHTS) => (float[1] y) { y = Relu (x) }", **tables)
    for name, table in tables.items():
        model.graph.initializers[name].const_value = ir.tensor(table.numpy(), name=name)
    InlineConstants()(model)
    assert list(model.graph.initializers) == ["long", "wide"]
