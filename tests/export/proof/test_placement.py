"""The runtime's table of kernels covers all exports."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from tests.export import tiny_models
from tests.export.conftest import Exported

import ortolan
from ortolan.export.options import ExportOptions, Int4
from ortolan.runtime.graph.schema import parse_model
from ortolan.runtime.inspect.kernel_table import DECISIVE_INPUT
from ortolan.runtime.inspect.placement import node_kinds, placement

Export = Callable[[str], Exported]


@pytest.mark.parametrize("name", ["llama", "gpt2-portable"])
def test_every_node_in_float32_has_a_kernel_on_the_cpu(exported: Export, name: str) -> None:
    placed = placement(exported(name).bundle, "cpu")
    assert placed.placed > 20
    assert placed.misplaced == ()


def test_every_node_in_float16_has_a_kernel_on_cuda(exported: Export) -> None:
    bundle = exported("llama-fp16").bundle
    placed = placement(bundle, "cuda")
    assert placed.placed > 20
    assert placed.misplaced == ()
    widened = placement(bundle, "cpu").misplaced
    assert {each.fallback for each in widened} == {"float32"}


def test_int4_with_an_int8_prefill_leaves_cuda_in_known_places(tmp_path: Path) -> None:
    bundle = ortolan.export(
        tiny_models.decoder(tiny_models.llama()),
        tmp_path / "bundle",
        precision=Int4(method="rtn"),
        options=ExportOptions(graphs="split", prefill_precision="int8"),
    )
    assert placement(bundle, "cpu").misplaced == ()
    found = {(each.graph, each.operator) for each in placement(bundle, "cuda").misplaced}
    assert found == {
        ("prefill", "ai.onnx::QuantizeLinear"),
        ("prefill", "ai.onnx::ReduceMax"),
        ("prefill", "com.microsoft::MatMulIntegerToFloat"),
        ("prefill", "com.microsoft::GroupQueryAttention"),
        ("decode", "com.microsoft::GroupQueryAttention"),
    }


@pytest.mark.parametrize("name", ["llama", "llama-fp16", "gpt2-portable"])
def test_types_are_those_that_the_exporter_wrote(exported: Export, name: str) -> None:
    """Compare decisive types with `value_info`, which the runtime ignores."""
    bundle = exported(name).bundle
    data = bundle.read("decoder.onnx")
    graph = onnx.load_from_string(data).graph
    declared = {
        value.name: onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name
        for value in (*graph.input, *graph.value_info)
    }
    expected = set()
    for node in graph.node:
        operator = f"{node.domain or 'ai.onnx'}::{node.op_type}"
        index = DECISIVE_INPUT.get(operator, 0)
        if len(node.input) > index and node.input[index] in declared:
            expected.add((operator, declared[node.input[index]]))
    kinds = {(kind.operator, kind.dtype) for kind in node_kinds(parse_model(data).graph)}
    assert len(expected) > 5
    assert expected <= kinds
