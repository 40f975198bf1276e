from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from tests.export import attention_graphs
from tests.export import whole_attention_graphs as whole
from tests.export.attention_graphs import CONVERSATIONS, KINDS, SINKS, WAYS, Run
from tests.export.conftest import Exported

from ortolan.export.errors import ExportError
from ortolan.runtime import Bundle

Export = Callable[[str], Exported]


@cache
def ways(kind: str) -> dict[str, Run]:
    kernels = attention_graphs.ways(attention_graphs.graph(KINDS[kind]))
    return {"pytorch": attention_graphs.in_pytorch(KINDS[kind]), **kernels}


def assert_equal(got: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]]) -> None:
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_attention_computes_what_pytorch_does(kind: str, conversation: str, way: str) -> None:
    steps = CONVERSATIONS[conversation]
    expected = steps.run(KINDS[kind], ways(kind)["pytorch"])
    assert_equal(steps.run(KINDS[kind], ways(kind)[way]), expected)


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("kind", SINKS)
def test_kernel_has_the_sinks_that_pytorch_has(kind: str, conversation: str) -> None:
    steps = CONVERSATIONS[conversation]
    expected = steps.run(SINKS[kind], attention_graphs.in_pytorch(SINKS[kind]))
    graph = attention_graphs.graph(SINKS[kind])
    assert_equal(steps.run(SINKS[kind], attention_graphs.in_onnxruntime(graph)), expected)


def test_node_without_a_body_is_refused_in_a_portable_graph() -> None:
    with pytest.raises(ExportError, match="GroupQueryAttention, sinks"):
        attention_graphs.with_bodies(attention_graphs.graph(SINKS["sinks"]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", whole.KINDS)
def test_node_without_a_cache_computes_what_pytorch_does(name: str, way: str) -> None:
    kind = whole.KINDS[name]
    run = attention_graphs.ways(whole.graph(kind))[way]
    assert_equal(whole.run_rows(kind, run), whole.run_rows(kind, whole.in_pytorch(kind)))


@pytest.mark.parametrize("shape", [(2, 4), (3, 2, 4)])
def test_body_of_fused_matmul_computes_what_the_kernel_does(shape: tuple[int, ...]) -> None:
    dims = ", ".join(map(str, shape))
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]>
        g (float[{dims}] a, float[5, 4] b) => (float[k] y) {{
            y = com.microsoft.FusedMatMul <transB = 1> (a, b)
        }}
    """)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    random = np.random.default_rng(0)
    inputs = {
        name: random.normal(size=size).astype("f") for name, size in [("a", shape), ("b", (5, 4))]
    }
    (fused,) = attention_graphs.in_onnxruntime(model)(inputs)
    model = attention_graphs.with_bodies(model)
    inlined = attention_graphs.without_kernel(model)
    for run in (attention_graphs.in_onnxruntime(inlined), attention_graphs.in_reference(model)):
        np.testing.assert_allclose(run(inputs)[0], fused, rtol=1e-5, atol=1e-6)


def test_body_of_skip_norm_computes_what_the_kernel_does() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]>
        g (float[2, 3, 8] a, float[2, 3, 8] b, float[8] w)
            => (float[2, 3, 8] y, float[2, 3, 1] inverse, float[2, 3, 8] sum) {
            y, mean, inverse, sum
                = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.01> (a, b, w)
        }
    """)
    random = np.random.default_rng(0)
    shapes = {"a": (2, 3, 8), "b": (2, 3, 8), "w": (8,)}
    inputs = {name: random.normal(size=shape).astype("f") for name, shape in shapes.items()}
    model = attention_graphs.with_bodies(model)
    total = inputs["a"] + inputs["b"]
    inverse = 1 / np.sqrt((total**2).mean(-1, keepdims=True) + 0.01)
    expected = (total * inverse * inputs["w"], inverse, total)
    inlined = attention_graphs.without_kernel(model)
    for run in (attention_graphs.in_onnxruntime(inlined), attention_graphs.in_reference(model)):
        for one, other in zip(run(inputs), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    kernel = attention_graphs.in_onnxruntime(model)(inputs)
    np.testing.assert_allclose(kernel[0], expected[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["gpt2-portable", "llama-split-portable"])
def test_portable_bundle_has_one_body_for_each_custom_operator(name: str, exported: Export) -> None:
    bundle = exported(name).bundle
    for graph in bundle.manifest.graphs.values():
        model = onnx.load(str(bundle.file(graph.file)), load_external_data=False)
        operators = {node.op_type for node in model.graph.node if node.domain == "com.microsoft"}
        assert {"FusedMatMul", "GroupQueryAttention"} <= operators
        assert [function.name for function in model.functions] == sorted(operators)


SIZES = {"batch": 1, "capacity": 32}


class ReferenceDecoder:
    """Greedy decoding of a bundle with `onnx.reference` alone."""

    def __init__(self, bundle: Bundle) -> None:
        self._manifest = bundle.manifest
        self._graphs = {
            role: ReferenceEvaluator(onnx.load(str(bundle.file(graph.file))))
            for role, graph in bundle.manifest.graphs.items()
        }
        self._states: list[NDArray[Any]] = [
            np.zeros([size if isinstance(size, int) else SIZES[size] for size in state.shape], "f")
            for state in bundle.manifest.states
        ]
        self._length = 0

    def greedy(self, prompt: list[int], new: int) -> tuple[int, ...]:
        tokens = [self._step(prompt)]
        while len(tokens) < new:
            tokens.append(self._step(tokens[-1:]))
        return tuple(tokens)

    def _step(self, ids: list[int]) -> int:
        self._length += len(ids)
        inputs: dict[str, NDArray[Any]] = {
            "input_ids": np.array([ids], np.int64),
            "seqlens_k": np.array([self._length - 1], np.int32),
            "total_sequence_length": np.array(self._length, np.int32),
            "logit_positions": np.array([[len(ids) - 1]], np.int64),
        }
        for state, array in zip(self._manifest.states, self._states, strict=True):
            inputs[state.input] = array
        role = "decoder" if "decoder" in self._graphs else "decode"
        if role == "decode" and len(ids) > 1:
            role = "prefill"
        evaluator = self._graphs[role]
        outputs = dict(zip(evaluator.output_names, evaluator.run(None, inputs), strict=True))
        self._states = [outputs[state.output] for state in self._manifest.states]
        return int(outputs["logits"][0, 0].argmax())


@pytest.mark.parametrize("name", ["gpt2-portable", "llama-split-portable"])
def test_portable_bundle_generates_the_same_tokens_without_onnxruntime(
    name: str, exported: Export
) -> None:
    case = exported(name)
    prompt = [4, 20, 3, 77, 5]
    expected = case.model.generate(prompt, max_new_tokens=8, ignore_eos=True)
    assert ReferenceDecoder(case.bundle).greedy(prompt, 8) == tuple(expected.tokens)
