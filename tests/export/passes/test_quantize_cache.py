"""The kernel stores the codes that are modeled here, and attends to them."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort  # type: ignore[import-untyped]
import pytest
import torch
from numpy.typing import NDArray

from ortolan.export.errors import OptionError
from ortolan.export.passes.quantize_cache import QuantizeCache, Turned
from ortolan.export.weights.int8_cache import reach_of_keys
from ortolan.modeling.config import RotaryPositions
from ortolan.modeling.layers.ops import Rotary
from ortolan.modeling.layers.positions import rotary_tables
from ortolan.modeling.layers.rotation import rotate
from ortolan.runtime.bundle.manifest import State

HEADS, KV_HEADS, WIDTH, CAPACITY = 4, 2, 16, 24

Array = NDArray[np.floating]


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

    def normal(*shape: int) -> Array:
        return random.standard_normal(shape, np.float32)

    scales = [np.exp(normal(KV_HEADS, 1, WIDTH)) / np.float32(60) for _ in range(2)]
    buffers = [
        random.integers(-128, 128, (KV_HEADS, CAPACITY, WIDTH)).astype(np.int8) for _ in range(2)
    ]
    query, key, value = normal(new, HEADS * WIDTH), *normal(2, new, KV_HEADS * WIDTH)
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
        QuantizeCache([state])(ir.Model(graph, ir_version=10))


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
