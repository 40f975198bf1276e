"""Nodes of codes: products of integers, mixtures of experts, and attention to a cache."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort  # type: ignore[import-untyped]
import pytest
import torch
from numpy.typing import NDArray
from tests.export.passes.graphs import Array, normal, operators, parsed, rewritten, run

from ortolan.export.errors import OptionError
from ortolan.export.passes.nodes import GraphPass
from ortolan.export.passes.quantize_cache import Turned, quantize_cache
from ortolan.export.passes.quantize_experts import quantize_experts
from ortolan.export.passes.quantize_products import CHANNEL_SCALES, CHANNELS, quantize_products
from ortolan.export.quantize import rtn
from ortolan.export.quantize.blocks import dequantize, pack, pack_zeros
from ortolan.export.quantize.channel import quantize_channels
from ortolan.export.scheme import Scheme
from ortolan.export.weights.int8_cache import reach_of_keys
from ortolan.modeling.config import RotaryPositions
from ortolan.modeling.layers.nodes import Rotary
from ortolan.modeling.layers.positions import rotary_tables
from ortolan.modeling.layers.rotation import rotate
from ortolan.runtime.bundle.manifest import State

V, W = normal(3, 64), normal(5, 64, seed=1)
X = normal(1, 6, 64, seed=2).numpy()

PRODUCTS = """
g (float[1, s, 64] x, WEIGHTS) => (float[1, s, 3] a, float[1, s, 5] b) {
    a = com.microsoft.FusedMatMul <transB = 1> (x, v)
    b = com.microsoft.FusedMatMul <transB = 1> (x, w)
}
"""


def stored(**weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """Weights, and what a bundle stores of them."""
    coded = dict(weights)
    for name, weight in weights.items():
        coded[name + CHANNELS], coded[name + CHANNEL_SCALES] = quantize_channels(weight)
    return coded


def quantized(x: Array) -> list[Array]:
    model = parsed(PRODUCTS, v=V, w=W)
    quantize_products(model.graph, {"v", "w"})
    return run(model, stored(v=V, w=W), x=x)


def error(got: Array, x: Array, weight: torch.Tensor) -> Array:
    """The error of each row of products, relative to its length."""
    wanted = x @ weight.numpy().T
    error: Array = np.linalg.norm(got - wanted, axis=-1) / np.linalg.norm(wanted, axis=-1)
    return error


def test_products_of_one_input_share_its_codes() -> None:
    model = parsed(PRODUCTS, v=V, w=W)
    rewritten(
        GraphPass(lambda graph: quantize_products(graph, {"v", "w"})),
        model,
        stored(v=V, w=W),
        x=X,
        atol=0.6,
    )
    assert operators(model).count("QuantizeLinear") == 1
    assert operators(model).count("MatMulIntegerToFloat") == 2
    assert not {"v", "w"} & model.graph.initializers.keys()


def test_large_rows_do_not_coarsen_others() -> None:
    x = X * np.array([1e6, 1, 1e-6, 1, 1e3, 1], np.float32)[:, None]
    for got, plain, weight in zip(quantized(x), quantized(X), (V, W), strict=True):
        assert error(got, x, weight).max() < 0.03
        np.testing.assert_allclose(error(got, x, weight), error(plain, X, weight), rtol=1e-3)


def test_a_row_is_the_same_to_the_bit_among_others() -> None:
    together = quantized(X)
    for row in range(X.shape[1]):
        for whole, alone in zip(together, quantized(X[:, row : row + 1]), strict=True):
            assert (whole[:, row] == alone[:, 0]).all()


@pytest.mark.parametrize("number", [0.0, 1e-38, 1e36])
def test_rows_of_extreme_numbers_are_finite(number: float) -> None:
    x = X.copy()
    x[0, 1] = number
    for got in quantized(x):
        assert np.isfinite(got).all()
    assert not quantized(X * 0)[0].any()


def test_a_row_that_is_not_finite_stays_so() -> None:
    x = X.copy()
    x[0, 1:3, 3] = np.inf, -np.inf
    (got, _), (plain, _) = quantized(x), quantized(X)
    assert not np.isfinite(got[0, 1:3]).any()
    assert (got[0, 3:] == plain[0, 3:]).all()


def test_other_products_stay() -> None:
    assert not quantize_products(parsed(PRODUCTS, v=V, w=W).graph, {"u"})


EXPERTS, INNER, OUTER = 3, 64, 96

MIXTURE = f"""
g (float[T, {OUTER}] x, float[T, {EXPERTS}] r, WEIGHTS) => (float[T, {OUTER}] y) {{
    y = com.microsoft.MoE <k = 2, activation_type = "swiglu", swiglu_fusion = 1,
        activation_alpha = 1.7, activation_beta = 1.0, swiglu_limit = 2.0,
        normalize_routing_weights = 1> (x, r, INPUTS)
}}
"""

MATRICES = {
    "up": normal(EXPERTS, 2 * INNER, OUTER) * 0.1,
    "down": normal(EXPERTS, OUTER, INNER, seed=1) * 0.1,
}
BIASES = {
    "up_bias": normal(EXPERTS, 2 * INNER, seed=2),
    "down_bias": normal(EXPERTS, OUTER, seed=3),
}
FEEDS = {"x": normal(7, OUTER, seed=4).numpy(), "r": normal(7, EXPERTS, seed=5).numpy()}

INPUTS = {"biased": "up, up_bias, down, down_bias", "bare": "up, , down"}


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_rewritten_node_computes_with_the_values_of_its_codes(
    bits: Any, inputs: str, symmetric: bool
) -> None:
    scheme = Scheme(bits=bits, group=32, symmetric=symmetric)
    stored, values = dict(BIASES), dict(BIASES)
    for name, weight in MATRICES.items():
        codes = [rtn.quantize(expert, scheme) for expert in weight]
        values[name] = torch.stack([dequantize(c) for c in codes])
        stored[f"{name}.codes"] = torch.stack([pack(c).flatten(1) for c in codes])
        stored[f"{name}.scales"] = torch.stack([c.scales for c in codes])
        zeros = [packed for c in codes if (packed := pack_zeros(c)) is not None]
        if zeros:
            stored[f"{name}.zeros"] = torch.stack(zeros)
    text = MIXTURE.replace("INPUTS", INPUTS[inputs])
    model = parsed(text, **MATRICES, **BIASES)
    (expected,) = run(model, values, **FEEDS)
    quantize_experts(model.graph, dict.fromkeys(MATRICES, scheme))
    assert operators(model) == ["QMoE"]
    assert not {"up", "down"} & set(model.graph.initializers)
    # The kernel rounds activations to 8 bits.
    (got,) = run(model, stored, **FEEDS)
    assert np.abs(got - expected).max() < 0.03 * np.abs(expected).max()


def test_a_node_that_is_not_in_the_plan_stays() -> None:
    model = parsed(MIXTURE.replace("INPUTS", INPUTS["biased"]), **MATRICES, **BIASES)
    assert not quantize_experts(model.graph, {"other": Scheme(bits=4, group=32)})


HEADS, KV_HEADS, WIDTH, CAPACITY = 4, 2, 16, 24


GRAPH = """
<ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]>
g (float[b, s, q] query, float[b, s, k] key, float[b, s, k] value,
   int8[b, h, c, d] past_key, int8[b, h, c, d] past_value, int32[b] last, int32 total,
   float[h, 1, d] key_scale, float[h, 1, d] value_scale)
=> (float[b, s, q] out, int8[b, h, c, d] present_key, int8[b, h, c, d] present_value) {
    out, present_key, present_value = com.microsoft.GroupQueryAttention <
        num_heads = 4, kv_num_heads = 2, scale = 0.3, kv_cache_bit_width = 8,
        k_quant_type = "PER_CHANNEL", v_quant_type = "PER_CHANNEL",
        local_window_size = WINDOW, softcap = CAP>
        (query, key, value, past_key, past_value, last, total, , , , , , key_scale, value_scale)
}
"""


def session(window: int, cap: float) -> ort.InferenceSession:
    text = GRAPH.replace("WINDOW", str(window)).replace("CAP", str(cap))
    data = onnx.parser.parse_model(text).SerializeToString()
    return ort.InferenceSession(data, providers=["CPUExecutionProvider"])


def codes(x: Array, scale: Array) -> NDArray[np.int8]:
    rounded: NDArray[np.int8] = np.clip(np.rint(x / scale), -128, 127).astype(np.int8)
    return rounded


def heads(x: Array) -> Array:
    return x.reshape(x.shape[0], -1, WIDTH).transpose(1, 0, 2)


def attention(q: Array, k: Array, v: Array, past: int, window: int, cap: float) -> Array:
    """Queries `(H, S, D)` after `past` tokens, keys and values `(K, T, D)`, to `(S, H * D)`."""
    k, v = (np.repeat(part, HEADS // KV_HEADS, 0) for part in (k, v))
    scores = 0.3 * q @ k.transpose(0, 2, 1)
    scores = cap * np.tanh(scores / cap) if cap else scores
    distance = past + np.arange(q.shape[1])[:, None] - np.arange(k.shape[1])
    seen = (distance >= 0) & ((distance < window) | (window < 0))
    weights = np.where(seen, np.exp(scores), 0)
    out = weights / weights.sum(-1, keepdims=True) @ v
    joined: Array = out.transpose(1, 0, 2).reshape(q.shape[1], -1)
    return joined


@pytest.mark.parametrize("new", [1, 6])
@pytest.mark.parametrize("past", [0, 11])
@pytest.mark.parametrize(("window", "cap"), [(-1, 0.0), (5, 3.0)])
def test_kernel_attends_to_the_codes_that_it_stores(
    new: int, past: int, window: int, cap: float
) -> None:
    random = np.random.default_rng(0)

    def drawn(*shape: int) -> Array:
        return random.standard_normal(shape, np.float32)

    scales: list[Any] = [np.exp(drawn(KV_HEADS, 1, WIDTH)) / 60 for _ in range(2)]
    buffers = [
        random.integers(-128, 128, (KV_HEADS, CAPACITY, WIDTH)).astype(np.int8) for _ in range(2)
    ]
    query, key, value = drawn(new, HEADS * WIDTH), *drawn(2, new, KV_HEADS * WIDTH)
    out, *presents = session(window, cap).run(
        None,
        {
            "query": query[None],
            "key": key[None],
            "value": value[None],
            "past_key": buffers[0][None],
            "past_value": buffers[1][None],
            "last": np.array([past + new - 1], np.int32),
            "total": np.array(past + new, np.int32),
            "key_scale": scales[0],
            "value_scale": scales[1],
        },
    )
    stored = []
    for buffer, x, scale, present in zip(buffers, (key, value), scales, presents, strict=True):
        buffer[:, past : past + new] = codes(heads(x), scale)
        np.testing.assert_array_equal(present[0, :, : past + new], buffer[:, : past + new])
        stored.append((buffer[:, : past + new] * scale).astype(np.float32))
    expected = attention(heads(query), stored[0], stored[1], past, window, cap)
    np.testing.assert_allclose(out[0], expected, atol=1e-5 * np.abs(expected).max())


def test_state_that_another_node_reads_is_refused() -> None:
    shape = ("batch", KV_HEADS, "capacity", WIDTH)
    state = State(
        name="0.key", input="past", output="present", shape=shape, dtype="float32", update="append"
    )
    kind, axes = ir.TensorType(ir.DataType.FLOAT), ir.Shape(shape)
    past = ir.Value(name="past", shape=axes, type=kind)
    node = ir.Node("", "TensorScatter", [past, past], num_outputs=1)
    node.outputs[0].name = "present"
    graph = ir.Graph([past], node.outputs, nodes=[node], opset_imports={"": 24})
    with pytest.raises(OptionError, match=r"'0.key'.*TensorScatter"):
        quantize_cache(graph, [state])


# --- how far keys reach ---------------------------------------------------------------------------

TOKENS, POSITIONS = 5, 4000


@pytest.mark.parametrize("channels", [32, 16])
@pytest.mark.parametrize("interleaved", [False, True])
def test_keys_stay_within_their_reach_at_every_position(channels: int, interleaved: bool) -> None:
    torch.manual_seed(0)
    keys_KSD = torch.randn(HEADS, TOKENS, 32) * torch.rand(32).exp()
    tables = rotary_tables(RotaryPositions(dim=channels, theta=100.0), POSITIONS)
    furthest = torch.zeros(HEADS, 1, 32)
    for position in range(0, POSITIONS, 7):
        cos, sin = (table[position][None].expand(TOKENS, -1) for table in tables)
        turned = rotate(keys_KSD, Rotary(cos, sin, interleaved))
        furthest = torch.maximum(furthest, turned.abs().amax(1, keepdim=True))
    reach = reach_of_keys(keys_KSD, Turned(channels, interleaved))
    assert (furthest <= reach * 1.0001).all()
    assert (furthest >= reach * 0.95).all()


def test_keys_that_others_turned_reach_as_far_as_the_furthest_of_their_head() -> None:
    keys_KSD = torch.tensor([[[1.0, -3.0]], [[0.5, 0.25]]])
    assert reach_of_keys(keys_KSD, None).tolist() == [[[3.0, 3.0]], [[0.5, 0.5]]]
