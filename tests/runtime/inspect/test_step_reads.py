"""Bytes counted by hand, for graphs of a few nodes."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from onnx import NodeProto, TensorProto, helper
from tests.runtime.graph_changes import MANIFEST
from tests.runtime.tiny_bundle import VOCABULARY, model

from ortolan.runtime.bundle.manifest import State
from ortolan.runtime.graph import rules as onnx_graph
from ortolan.runtime.graph.summary import GraphSummary, Reader
from ortolan.runtime.inspect.step_reads import StepReads, count

FLOAT, HALF, UINT8, INT8 = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.UINT8,
    TensorProto.INT8,
)
BITS: dict[int, int] = {FLOAT: 32, HALF: 16, UINT8: 8, INT8: 8, TensorProto.INT4: 4}

MICROSOFT = "com.microsoft"

WIDTH, OUT = 64, 96


def tensor(name: str, dims: Sequence[int], dtype: int = FLOAT, *, offset: int = 0) -> TensorProto:
    made = TensorProto(name=name, data_type=dtype, dims=dims)
    made.data_location = TensorProto.EXTERNAL
    length = BITS[dtype]
    for size in dims:
        length *= size
    entries = (("location", "weights.bin"), ("offset", offset), ("length", length // 8))
    for key, value in entries:
        made.external_data.add(key=key, value=f"{value}")
    return made


def node(op_type: str, inputs: Sequence[str], domain: str = "", **attributes: Any) -> NodeProto:
    return helper.make_node(op_type, inputs, ["out"], domain=domain, **attributes)


def block_product(name: str, *, bits: int, group: int, beside: Sequence[str] = ()) -> NodeProto:
    """MatMulNBits over `name`, its scales and whatever stands behind them."""
    return node(
        "MatMulNBits",
        ["x", name, f"{name}.scales", *beside],
        MICROSOFT,
        K=WIDTH,
        N=VOCABULARY,
        bits=bits,
        block_size=group,
    )


def summary(nodes: Sequence[NodeProto], tensors: Sequence[TensorProto]) -> GraphSummary:
    graph = helper.make_graph(list(nodes), "graph", [], [], initializer=list(tensors))
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid(MICROSOFT, 1)]
    for index, each in enumerate(graph.node):
        each.output[0] = f"out{index}"
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnx_graph.read(made.SerializeToString())


def reads(
    nodes: Sequence[NodeProto], tensors: Sequence[TensorProto], device: str = "cpu"
) -> StepReads:
    return count(MANIFEST, summary(nodes, tensors), device=device)


# --- floats -----------------------------------------------------------------------------------


def test_products_are_read_whole_and_of_the_embedding_one_row() -> None:
    counted = count(MANIFEST, onnx_graph.read(model().SerializeToString()), device="cpu")
    assert [(matrix.name, matrix.bytes) for matrix in counted.matrices] == [
        ("qkv", 4 * 32 * 64),
        ("head", 4 * 32 * 24),
    ]
    assert counted.other_bytes == 4 * 32
    assert counted.weight_bytes == 4 * 32 * (64 + 24 + 1)


def test_a_tied_table_counts_once_as_the_head() -> None:
    counted = reads(
        [
            node("Gather", ["table", "ids"]),
            node("FusedMatMul", ["x", "table"], MICROSOFT, transB=1),
        ],
        [tensor("table", (VOCABULARY, WIDTH))],
    )
    assert counted.weight_bytes == 4 * VOCABULARY * WIDTH
    assert [matrix.is_head for matrix in counted.matrices] == [True]
    assert (counted.matrices[0].format, counted.matrices[0].group) == ("fp32", None)


def test_norms_and_biases_are_read_whole_and_rotations_by_the_row() -> None:
    counted = reads(
        [
            node("RMSNormalization", ["x", "norm"]),
            node("Add", ["x", "bias"]),
            node(
                "GroupQueryAttention",
                ["q", "k", "v", "pk", "pv", "len", "total", "cos", "sin"],
                MICROSOFT,
                num_heads=2,
                kv_num_heads=2,
            ),
        ],
        [
            tensor("norm", (WIDTH,)),
            tensor("bias", (OUT,)),
            tensor("cos", (1024, 8)),
            tensor("sin", (1024, 8)),
        ],
    )
    assert counted.matrices == ()
    assert counted.other_bytes == 4 * (WIDTH + OUT + 8 + 8)


def test_the_bias_of_a_gemm_is_among_its_bytes_and_no_scale() -> None:
    counted = reads(
        [node("Gemm", ["x", "weight", "bias"], transB=1)],
        [tensor("weight", (OUT, WIDTH)), tensor("bias", (OUT,))],
    )
    (matrix,) = counted.matrices
    assert (matrix.name, matrix.elements) == ("weight", OUT * WIDTH)
    assert (matrix.bytes, matrix.grid_bytes) == (4 * OUT * (WIDTH + 1), 0)


def test_weights_that_two_products_read_are_read_twice() -> None:
    product = node("MatMul", ["x", "shared"])
    counted = reads([product, product], [tensor("shared", (WIDTH, OUT))])
    assert counted.weight_bytes == 2 * 4 * WIDTH * OUT


def test_weights_that_nothing_reads_do_not_count() -> None:
    assert reads([node("Relu", ["x"])], [tensor("unused", (WIDTH, OUT))]).weight_bytes == 0


@pytest.mark.parametrize(("device", "width", "format_"), [("cpu", 4, "fp32"), ("cuda", 2, "fp16")])
def test_halves_are_widened_on_the_cpu_except_in_tables(
    device: str, width: int, format_: str
) -> None:
    counted = reads(
        [
            node("Gather", ["table", "ids"]),
            node("RMSNormalization", ["x", "norm"]),
            node("MatMul", ["x", "weight"]),
        ],
        [
            tensor("table", (VOCABULARY, WIDTH), HALF),
            tensor("norm", (WIDTH,), HALF, offset=8192),
            tensor("weight", (WIDTH, OUT), HALF, offset=16384),
        ],
        device,
    )
    (matrix,) = counted.matrices
    assert (matrix.format, matrix.stored, matrix.bytes) == (format_, "fp16", width * WIDTH * OUT)
    assert counted.other_bytes == 2 * WIDTH + width * WIDTH


# --- integers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (8, 32), (4, 64)])
def test_a_quantized_product_reads_codes_and_scales(bits: int, group: int) -> None:
    groups = WIDTH // group
    counted = reads(
        [block_product("w", bits=bits, group=group)],
        [
            tensor("w", (VOCABULARY, groups, group * bits // 8), UINT8),
            tensor("w.scales", (VOCABULARY, groups)),
        ],
    )
    (matrix,) = counted.matrices
    assert (matrix.format, matrix.stored, matrix.group) == (f"int{bits}", f"int{bits}", group)
    assert (matrix.inputs, matrix.elements) == (WIDTH, VOCABULARY * WIDTH)
    assert matrix.grid_bytes == 4 * VOCABULARY * groups
    assert matrix.bytes == VOCABULARY * WIDTH * bits // 8 + matrix.grid_bytes


def test_zero_points_belong_to_the_scales_and_a_bias_does_not() -> None:
    counted = reads(
        [block_product("w", bits=4, group=32, beside=["w.zeros", "", "w.bias"])],
        [
            tensor("w", (VOCABULARY, 2, 16), UINT8),
            tensor("w.scales", (VOCABULARY, 2)),
            tensor("w.zeros", (VOCABULARY, 1), UINT8),
            tensor("w.bias", (VOCABULARY,)),
        ],
    )
    (matrix,) = counted.matrices
    assert matrix.grid_bytes == VOCABULARY * (8 + 1)
    assert matrix.bytes == VOCABULARY * (32 + 8 + 1 + 4)


def look_up(table: str, scales: str) -> NodeProto:
    return node(
        "GatherBlockQuantized",
        [table, "ids", scales],
        MICROSOFT,
        bits=4,
        block_size=32,
        gather_axis=0,
        quantize_axis=1,
    )


def test_a_quantized_table_with_two_names_counts_once() -> None:
    counted = reads(
        [look_up("w.table", "w.scales"), block_product("w", bits=4, group=32)],
        [
            tensor("w.table", (VOCABULARY, 32), UINT8, offset=4096),
            tensor("w", (VOCABULARY, 2, 16), UINT8, offset=4096),
            tensor("w.scales", (VOCABULARY, 2), offset=8192),
        ],
    )
    assert counted.weight_bytes == VOCABULARY * (32 + 8)
    assert counted.other_bytes == 0


def test_of_a_quantized_table_alone_a_row_and_its_scales_are_read() -> None:
    counted = reads(
        [look_up("table", "scales")],
        [tensor("table", (VOCABULARY, 32), UINT8), tensor("scales", (VOCABULARY, 2), offset=4096)],
    )
    assert counted.weight_bytes == 32 + 8


def test_standard_operators_read_codes_in_front_of_the_product() -> None:
    counted = reads(
        [
            node("DequantizeLinear", ["codes", "scales"], axis=0, block_size=32),
            node("MatMul", ["x", "dequantized"]),
        ],
        [tensor("codes", (WIDTH, OUT), TensorProto.INT4), tensor("scales", (2, OUT))],
    )
    (matrix,) = counted.matrices
    assert (matrix.format, matrix.group, matrix.elements) == ("int4", 32, WIDTH * OUT)
    assert matrix.inputs == WIDTH
    assert (matrix.bytes, matrix.grid_bytes) == (WIDTH * OUT // 2 + 8 * OUT, 8 * OUT)


def test_scales_per_channel_make_no_groups() -> None:
    counted = reads(
        [node("DynamicQuantizeMatMul", ["x", "codes", "scales"], MICROSOFT)],
        [tensor("codes", (WIDTH, OUT), INT8), tensor("scales", (OUT,))],
    )
    (matrix,) = counted.matrices
    assert (matrix.format, matrix.group, matrix.bytes) == ("int8", None, OUT * (WIDTH + 4))


# --- the head, states, readers ----------------------------------------------------------------


def test_the_head_is_the_last_product_with_the_size_of_the_vocabulary() -> None:
    counted = reads(
        [
            node("MatMul", ["x", "first"]),
            node("MatMul", ["x", "second"]),
            node("MatMul", ["x", "third"]),
        ],
        [
            tensor("first", (WIDTH, VOCABULARY)),
            tensor("second", (WIDTH, VOCABULARY)),
            tensor("third", (WIDTH, OUT)),
        ],
    )
    assert [matrix.is_head for matrix in counted.matrices] == [False, True, False]


def test_the_cache_is_read_up_to_the_length_and_fixed_states_whole() -> None:
    def state(name: str, shape: tuple[int | str, ...], dtype: Any, update: Any) -> State:
        return State(name=name, input=name, output=name, shape=shape, dtype=dtype, update=update)

    states = (
        state("key", ("batch", 2, "capacity", 8), "float32", "append"),
        state("value", ("batch", 2, "capacity", 16), "float16", "append"),
        state("sum", ("batch", 3, 5), "float32", "replace"),
    )
    manifest = msgspec.structs.replace(MANIFEST, states=states)
    graph = summary([node("MatMul", ["x", "w"])], [tensor("w", (WIDTH, OUT))])
    counted = count(manifest, graph, device="cpu")
    assert counted.cache_bytes_per_token == 2 * 8 * 4 + 2 * 16 * 2
    assert counted.state_bytes == 3 * 5 * 4
    assert counted.bytes_at(10) == 4 * WIDTH * OUT + 60 + 10 * 128


def test_a_graph_lists_who_reads_which_weight() -> None:
    graph = summary(
        [node("Relu", ["x"]), block_product("w", bits=4, group=32), node("Add", ["x", "b"])],
        [
            tensor("b", (OUT,)),
            tensor("w.scales", (VOCABULARY, 2)),
            tensor("w", (VOCABULARY, 2, 16), UINT8),
        ],
    )
    numbers = {"K": WIDTH, "N": VOCABULARY, "bits": 4, "block_size": 32}
    assert graph.readers == (
        Reader(operator=f"{MICROSOFT}::MatMulNBits", weights=("w", "w.scales"), attributes=numbers),
        Reader(operator="ai.onnx::Add", weights=("b",), attributes={}),
    )


def test_of_experts_those_of_one_token_are_read() -> None:
    tensors = [
        tensor("up", (8, 2 * 32, WIDTH)),
        tensor("up_bias", (8, 2 * 32)),
        tensor("down", (8, WIDTH, 32)),
    ]
    inputs = ["x", "logits", "up", "up_bias", "down"]
    (matrix,) = reads([node("MoE", inputs, MICROSOFT, k=2)], tensors).matrices
    assert (matrix.format, matrix.group, matrix.inputs) == ("fp32", None, WIDTH)
    assert matrix.elements == 2 * 3 * 32 * WIDTH
    assert matrix.bytes == 4 * (matrix.elements + 2 * 2 * 32)
    assert matrix.grid_bytes == 0


@pytest.mark.parametrize("bits", [4, 8])
def test_of_quantized_experts_codes_and_scales_are_read(bits: int) -> None:
    tensors = [
        tensor("up", (8, 2 * 32, WIDTH * bits // 8), UINT8),
        tensor("up.scales", (8, 2 * 32, WIDTH // 32)),
        tensor("down", (8, WIDTH, 32 * bits // 8), UINT8),
        tensor("down.scales", (8, WIDTH, 1)),
    ]
    inputs = ["x", "logits", "up", "up.scales", "", "down", "down.scales"]
    attributes = {"k": 2, "expert_weight_bits": bits, "block_size": 32}
    (matrix,) = reads([node("QMoE", inputs, MICROSOFT, **attributes)], tensors).matrices
    assert (matrix.stored, matrix.group, matrix.inputs) == (f"int{bits}", 32, WIDTH)
    assert matrix.elements == 2 * 3 * 32 * WIDTH
    assert matrix.grid_bytes == 4 * matrix.elements // 32
    assert matrix.bytes == matrix.elements * bits // 8 + matrix.grid_bytes
