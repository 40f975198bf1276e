"""Bytes counted by hand, for graphs of a few nodes."""

import math
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
from ortolan.runtime.inspect.step_reads import MatrixRead, StepReads, count

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
UINT8, INT8 = TensorProto.UINT8, TensorProto.INT8
BITS: dict[int, int] = {FLOAT: 32, HALF: 16, UINT8: 8, INT8: 8, TensorProto.INT4: 4}

MICROSOFT = "com.microsoft"

WIDTH, OUT = 64, 96


def tensor(name: str, *dims: int, dtype: int = FLOAT, offset: int = 0) -> TensorProto:
    tensor = TensorProto(name=name, data_type=dtype, dims=dims)
    tensor.data_location = TensorProto.EXTERNAL
    length = BITS[dtype] * math.prod(dims) // 8
    for key, value in (("location", "weights.bin"), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=f"{value}")
    return tensor


def node(op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> NodeProto:
    return helper.make_node(op_type, inputs, ["out"], domain=domain, **attributes)


def block_product(name: str, *others: str, bits: int = 4, group: int = 32) -> NodeProto:
    """MatMulNBits over `name`, its scales and other inputs."""
    return node(
        "MatMulNBits",
        "x",
        name,
        f"{name}.scales",
        *others,
        domain=MICROSOFT,
        K=WIDTH,
        N=VOCABULARY,
        bits=bits,
        block_size=group,
    )


def look_up(table: str, scales: str) -> NodeProto:
    return node(
        "GatherBlockQuantized",
        table,
        "ids",
        scales,
        domain=MICROSOFT,
        bits=4,
        block_size=32,
        gather_axis=0,
        quantize_axis=1,
    )


def summary(nodes: Sequence[NodeProto], tensors: Sequence[TensorProto]) -> GraphSummary:
    graph = helper.make_graph(list(nodes), "graph", [], [], initializer=list(tensors))
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid(MICROSOFT, 1)]
    for index, entry in enumerate(graph.node):
        entry.output[0] = f"out{index}"
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnx_graph.read(proto.SerializeToString())


def reads(
    nodes: Sequence[NodeProto], tensors: Sequence[TensorProto], device: str = "cpu"
) -> StepReads:
    return count(MANIFEST, summary(nodes, tensors), device=device)


def one_matrix(nodes: Sequence[NodeProto], tensors: Sequence[TensorProto]) -> MatrixRead:
    (matrix,) = reads(nodes, tensors).matrices
    return matrix


# --- floats -----------------------------------------------------------------------------------


def test_products_are_read_completely_and_one_row_of_the_embedding() -> None:
    counted = count(MANIFEST, onnx_graph.read(model().SerializeToString()), device="cpu")
    assert [(matrix.name, matrix.bytes) for matrix in counted.matrices] == [
        ("qkv", 4 * 32 * 64),
        ("head", 4 * 32 * 24),
    ]
    assert counted.other_bytes == 4 * 32
    assert counted.weight_bytes == 4 * 32 * (64 + 24 + 1)


def test_a_tied_table_counts_once_as_the_head() -> None:
    product = node("FusedMatMul", "x", "table", domain=MICROSOFT, transB=1)
    counted = reads([node("Gather", "table", "ids"), product], [tensor("table", VOCABULARY, WIDTH)])
    assert counted.weight_bytes == 4 * VOCABULARY * WIDTH
    (matrix,) = counted.matrices
    assert (matrix.is_head, matrix.format, matrix.group) == (True, "fp32", None)


def test_norms_and_biases_are_read_completely_and_one_row_of_rotations() -> None:
    inputs = ("q", "k", "v", "pk", "pv", "len", "total", "cos", "sin")
    counted = reads(
        [
            node("RMSNormalization", "x", "norm"),
            node("Add", "x", "bias"),
            node("GroupQueryAttention", *inputs, domain=MICROSOFT, num_heads=2, kv_num_heads=2),
        ],
        [
            tensor("norm", WIDTH),
            tensor("bias", OUT),
            tensor("cos", 1024, 8),
            tensor("sin", 1024, 8),
        ],
    )
    assert counted.matrices == ()
    assert counted.other_bytes == 4 * (WIDTH + OUT + 8 + 8)


def test_the_bias_of_a_gemm_counts_but_is_not_a_scale() -> None:
    matrix = one_matrix(
        [node("Gemm", "x", "weight", "bias", transB=1)],
        [tensor("weight", OUT, WIDTH), tensor("bias", OUT)],
    )
    assert (matrix.name, matrix.elements) == ("weight", OUT * WIDTH)
    assert (matrix.bytes, matrix.grid_bytes) == (4 * OUT * (WIDTH + 1), 0)


def test_shared_weights_count_per_product_and_unused_ones_not_at_all() -> None:
    product, shared = node("MatMul", "x", "shared"), tensor("shared", WIDTH, OUT)
    assert reads([product, product], [shared]).weight_bytes == 2 * 4 * WIDTH * OUT
    assert reads([node("Relu", "x")], [shared]).weight_bytes == 0


@pytest.mark.parametrize(("device", "width", "format_"), [("cpu", 4, "fp32"), ("cuda", 2, "fp16")])
def test_halves_are_widened_on_the_cpu_except_in_tables(
    device: str, width: int, format_: str
) -> None:
    counted = reads(
        [
            node("Gather", "table", "ids"),
            node("RMSNormalization", "x", "norm"),
            node("MatMul", "x", "weight"),
        ],
        [
            tensor("table", VOCABULARY, WIDTH, dtype=HALF),
            tensor("norm", WIDTH, dtype=HALF, offset=8192),
            tensor("weight", WIDTH, OUT, dtype=HALF, offset=16384),
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
    matrix = one_matrix(
        [block_product("w", bits=bits, group=group)],
        [
            tensor("w", VOCABULARY, groups, group * bits // 8, dtype=UINT8),
            tensor("w.scales", VOCABULARY, groups),
        ],
    )
    assert (matrix.format, matrix.stored, matrix.group) == (f"int{bits}", f"int{bits}", group)
    assert (matrix.inputs, matrix.elements) == (WIDTH, VOCABULARY * WIDTH)
    assert matrix.grid_bytes == 4 * VOCABULARY * groups
    assert matrix.bytes == VOCABULARY * WIDTH * bits // 8 + matrix.grid_bytes


def test_zero_points_count_as_scales_and_a_bias_does_not() -> None:
    matrix = one_matrix(
        [block_product("w", "w.zeros", "", "w.bias")],
        [
            tensor("w", VOCABULARY, 2, 16, dtype=UINT8),
            tensor("w.scales", VOCABULARY, 2),
            tensor("w.zeros", VOCABULARY, 1, dtype=UINT8),
            tensor("w.bias", VOCABULARY),
        ],
    )
    assert matrix.grid_bytes == VOCABULARY * (8 + 1)
    assert matrix.bytes == VOCABULARY * (32 + 8 + 1 + 4)


def test_a_quantized_table_with_two_names_counts_once() -> None:
    counted = reads(
        [look_up("w.table", "w.scales"), block_product("w")],
        [
            tensor("w.table", VOCABULARY, 32, dtype=UINT8, offset=4096),
            tensor("w", VOCABULARY, 2, 16, dtype=UINT8, offset=4096),
            tensor("w.scales", VOCABULARY, 2, offset=8192),
        ],
    )
    assert counted.weight_bytes == VOCABULARY * (32 + 8)
    assert counted.other_bytes == 0


def test_a_quantized_table_reads_one_row_and_its_scales() -> None:
    tensors = [
        tensor("table", VOCABULARY, 32, dtype=UINT8),
        tensor("scales", VOCABULARY, 2, offset=4096),
    ]
    assert reads([look_up("table", "scales")], tensors).weight_bytes == 32 + 8


def test_standard_operators_read_codes_before_the_product() -> None:
    matrix = one_matrix(
        [
            node("DequantizeLinear", "codes", "scales", axis=0, block_size=32),
            node("MatMul", "x", "dequantized"),
        ],
        [tensor("codes", WIDTH, OUT, dtype=TensorProto.INT4), tensor("scales", 2, OUT)],
    )
    assert (matrix.format, matrix.group, matrix.elements) == ("int4", 32, WIDTH * OUT)
    assert matrix.inputs == WIDTH
    assert (matrix.bytes, matrix.grid_bytes) == (WIDTH * OUT // 2 + 8 * OUT, 8 * OUT)


def test_scales_per_channel_are_not_groups() -> None:
    matrix = one_matrix(
        [node("DynamicQuantizeMatMul", "x", "codes", "scales", domain=MICROSOFT)],
        [tensor("codes", WIDTH, OUT, dtype=INT8), tensor("scales", OUT)],
    )
    assert (matrix.format, matrix.group, matrix.bytes) == ("int8", None, OUT * (WIDTH + 4))


# --- experts ----------------------------------------------------------------------------------


def test_experts_of_one_token_are_read() -> None:
    matrix = one_matrix(
        [node("MoE", "x", "logits", "up", "up_bias", "down", domain=MICROSOFT, k=2)],
        [
            tensor("up", 8, 2 * 32, WIDTH),
            tensor("up_bias", 8, 2 * 32),
            tensor("down", 8, WIDTH, 32),
        ],
    )
    assert (matrix.format, matrix.group, matrix.inputs) == ("fp32", None, WIDTH)
    assert matrix.elements == 2 * 3 * 32 * WIDTH
    assert matrix.bytes == 4 * (matrix.elements + 2 * 2 * 32)
    assert matrix.grid_bytes == 0


@pytest.mark.parametrize("bits", [4, 8])
def test_codes_and_scales_of_quantized_experts_are_read(bits: int) -> None:
    inputs = ("x", "logits", "up", "up.scales", "", "down", "down.scales")
    attributes = {"k": 2, "expert_weight_bits": bits, "block_size": 32}
    matrix = one_matrix(
        [node("QMoE", *inputs, domain=MICROSOFT, **attributes)],
        [
            tensor("up", 8, 2 * 32, WIDTH * bits // 8, dtype=UINT8),
            tensor("up.scales", 8, 2 * 32, WIDTH // 32),
            tensor("down", 8, WIDTH, 32 * bits // 8, dtype=UINT8),
            tensor("down.scales", 8, WIDTH, 1),
        ],
    )
    assert (matrix.stored, matrix.group, matrix.inputs) == (f"int{bits}", 32, WIDTH)
    assert matrix.elements == 2 * 3 * 32 * WIDTH
    assert matrix.grid_bytes == 4 * matrix.elements // 32
    assert matrix.bytes == matrix.elements * bits // 8 + matrix.grid_bytes


# --- head, states, readers --------------------------------------------------------------------


def test_the_head_is_the_last_product_as_wide_as_the_vocabulary() -> None:
    widths = {"first": VOCABULARY, "second": VOCABULARY, "third": OUT}
    counted = reads(
        [node("MatMul", "x", name) for name in widths],
        [tensor(name, WIDTH, width) for name, width in widths.items()],
    )
    assert [matrix.is_head for matrix in counted.matrices] == [False, True, False]


def test_the_cache_is_read_up_to_the_length_and_fixed_states_completely() -> None:
    def state(name: str, shape: tuple[int | str, ...], dtype: Any, update: Any) -> State:
        return State(name=name, input=name, output=name, shape=shape, dtype=dtype, update=update)

    states = (
        state("key", ("batch", 2, "capacity", 8), "float32", "append"),
        state("value", ("batch", 2, "capacity", 16), "float16", "append"),
        state("sum", ("batch", 3, 5), "float32", "replace"),
    )
    manifest = msgspec.structs.replace(MANIFEST, states=states)
    graph = summary([node("MatMul", "x", "w")], [tensor("w", WIDTH, OUT)])
    counted = count(manifest, graph, device="cpu")
    assert counted.cache_bytes_per_token == 2 * 8 * 4 + 2 * 16 * 2
    assert counted.state_bytes == 3 * 5 * 4
    assert counted.bytes_at(10) == 4 * WIDTH * OUT + 60 + 10 * 128


def test_a_graph_lists_the_readers_of_its_weights() -> None:
    graph = summary(
        [node("Relu", "x"), block_product("w"), node("Add", "x", "b")],
        [
            tensor("b", OUT),
            tensor("w.scales", VOCABULARY, 2),
            tensor("w", VOCABULARY, 2, 16, dtype=UINT8),
        ],
    )
    numbers = {"K": WIDTH, "N": VOCABULARY, "bits": 4, "block_size": 32}
    assert graph.readers == (
        Reader(operator=f"{MICROSOFT}::MatMulNBits", weights=("w", "w.scales"), attributes=numbers),
        Reader(operator="ai.onnx::Add", weights=("b",), attributes={}),
    )
