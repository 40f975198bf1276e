import getpass
import logging
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto
from tests.export.conftest import Exported
from tests.export.tiny_models import CASES, llama
from tests.modeling import kinds

from ortolan.export.passes import tidy
from ortolan.export.source.family import trace_graph
from ortolan.export.trace.decoder import trace_decoder
from ortolan.modeling import ConfigError
from ortolan.modeling.config import RelativeBiasPositions
from ortolan.modeling.models.stack import Stack
from ortolan.runtime import Bundle
from ortolan.runtime.bundle.manifest import Graph

Export = Callable[[str], Exported]

INT32, INT64 = TensorProto.INT32, TensorProto.INT64
FLOAT, FLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16


def load_graph(bundle: Bundle, role: str) -> ModelProto:
    path = bundle.file(bundle.manifest.graphs[role].file)
    return onnx.load(str(path), load_external_data=False)


def described(value: ValueInfoProto) -> tuple[str, int, list[int | str]]:
    tensor = value.type.tensor_type
    shape = [dim.dim_param or dim.dim_value for dim in tensor.shape.dim]
    return value.name, tensor.elem_type, shape


def attention_nodes(graph: ModelProto) -> list[NodeProto]:
    return [node for node in graph.graph.node if node.op_type == "GroupQueryAttention"]


def attributes(node: NodeProto) -> dict[str, object]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def state_values(prefix: str, dtype: int) -> list[tuple[str, int, list[int | str]]]:
    shape: list[int | str] = ["batch", 2, "capacity", 16]
    return [
        (f"{prefix}.{layer}.{kind}", dtype, shape)
        for layer in range(2)
        for kind in ("key", "value")
    ]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("llama", FLOAT), pytest.param("llama-fp16", FLOAT16, marks=pytest.mark.slow)],
)
def test_inputs_and_outputs_are_those_of_the_contract(
    name: str, dtype: int, exported: Export
) -> None:
    graph = load_graph(exported(name).bundle, "decoder").graph
    assert [described(value) for value in graph.input] == [
        ("input_ids", INT64, ["batch", "sequence"]),
        ("seqlens_k", INT32, ["batch"]),
        ("total_sequence_length", INT32, []),
        ("logit_positions", INT64, ["batch", "rows"]),
        *state_values("past_key_values", dtype),
    ]
    assert [described(value) for value in graph.output] == [
        ("logits", FLOAT, ["batch", "rows", 97]),
        *state_values("present", dtype),
    ]


def test_decode_graph_takes_exactly_one_token(exported: Export) -> None:
    graph = load_graph(exported("llama-split-portable").bundle, "decode").graph
    shapes = {name: shape for name, _, shape in map(described, [*graph.input, *graph.output])}
    assert shapes["input_ids"] == ["batch", 1]
    assert shapes["logit_positions"] == ["batch", 1]
    assert shapes["logits"] == ["batch", 1, 97]
    assert shapes["past_key_values.0.key"] == ["batch", 2, "capacity", 16]


def test_every_layer_is_one_attention_node_with_its_attributes(exported: Export) -> None:
    full, windowed = attention_nodes(load_graph(exported("qwen2-long").bundle, "decoder"))
    expected = {"num_heads": 4, "kv_num_heads": 2, "scale": 0.25, "do_rotary": 1}
    assert attributes(full) == expected | {"local_window_size": -1, "softcap": 3.0}
    assert attributes(windowed) == expected | {"local_window_size": 11, "softcap": 0.0}


def test_attention_without_rotary_positions_takes_no_tables(exported: Export) -> None:
    (node,) = attention_nodes(load_graph(exported("post-norm").bundle, "decoder"))
    assert attributes(node)["do_rotary"] == 0
    assert attributes(node)["scale"] == pytest.approx(0.3)
    assert [name for name in node.input[7:] if name] == []


REVEALING = (
    *(str(Path.cwd()), "site-packages", ".py", "/tmp", socket.gethostname()),
    *(f"/{getpass.getuser()}/", "torch.nn", "stack_trace"),
)


@pytest.mark.parametrize("name", CASES)
def test_graphs_have_known_versions_no_weights_and_no_trace_of_the_machine(
    name: str, exported: Export
) -> None:
    bundle = exported(name).bundle
    for role in bundle.manifest.graphs:
        model = load_graph(bundle, role)
        assert model.ir_version <= 13
        versions = {entry.domain: entry.version for entry in model.opset_import}
        assert versions == {"": 24, "com.microsoft": 1}
        assert bool(model.functions) is (bundle.manifest.attention == "portable")
        graph = model.graph
        assert graph.initializer
        for tensor in graph.initializer:
            assert tensor.data_location == TensorProto.EXTERNAL
            assert not tensor.raw_data
        constants = [a.t for node in graph.node for a in node.attribute if a.name == "value"]
        assert sum(len(tensor.raw_data) for tensor in constants) < 200
        data = bundle.read(bundle.manifest.graphs[role].file)
        assert [text for text in REVEALING if text.encode() in data] == []
        parts = [model, graph, *graph.node, *graph.value_info]
        parts += [*graph.input, *graph.output, *graph.initializer]
        assert [part for part in parts if part.metadata_props or part.doc_string] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_graphs_are_valid(name: str, exported: Export) -> None:
    bundle = exported(name).bundle
    for graph in bundle.manifest.graphs.values():
        onnx.checker.check_model(str(bundle.file(graph.file)))


def per_layer(model: ir.Model, layers: int) -> list[Counter[tuple[str, str]]]:
    """Operators of each layer, from its first norm to that of the next."""
    starts = [f"blocks.{layer}.attention_norm.weight" for layer in range(layers)]
    starts.append("final_norm.weight")
    counts: list[Counter[tuple[str, str]]] = [Counter()]
    for node in model.graph:
        if {value.name for value in node.inputs if value is not None} & set(starts):
            counts.append(Counter())
        if node.op_type != "Constant":  # equal ones are shared between layers
            counts[-1][node.domain, node.op_type] += 1
    return counts[1:-1]


def test_every_layer_of_a_deeper_model_has_the_same_nodes(exported: Export) -> None:
    two = ir.from_proto(load_graph(exported("llama").bundle, "decoder"))
    four = tidy(trace_decoder(llama(layers=4), dtype=torch.float32))
    shallow, deep = per_layer(two, 2), per_layer(four, 4)
    assert (len(shallow), len(deep)) == (2, 4)
    # Inside, the first norm of a layer is one node with the last sum of the one before. After the
    # last layer, positions are selected before the final norm.
    assert deep[1] == deep[2]
    assert (shallow[0], shallow[1]) == (deep[0], deep[3])
    for layer in deep:
        assert layer["com.microsoft", "GroupQueryAttention"] == 1
        assert layer["com.microsoft", "FusedMatMul"] == 5
    assert deep[1]["com.microsoft", "SkipSimplifiedLayerNormalization"] == 2


def test_a_model_that_cannot_be_traced_names_the_module_and_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    relative = Stack.relative

    def reading(stack: Stack, positions: torch.Tensor, keys: int) -> object:
        return relative(stack, positions, range(keys)[int(positions.sum())])

    monkeypatch.setattr(Stack, "relative", reading)
    config = kinds.seq2seq_config(RelativeBiasPositions(buckets=8, max_distance=16))
    message = r"cannot trace this model: [^\n\x1b]*, in step_states\)[^\n\x1b]* --via transformers"
    with pytest.raises(ConfigError, match=message):
        trace_graph(config, "decoder", Graph(file="decoder.onnx"), dtype=torch.float32)


def test_trace_leaves_torch_and_its_loggers_as_they_were(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = logger.level, torch.get_default_dtype()
    with caplog.at_level(logging.DEBUG):
        trace_decoder(llama(layers=1), dtype=torch.float16)
    assert (logger.level, torch.get_default_dtype()) == before
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
    assert capfd.readouterr() == ("", "")
