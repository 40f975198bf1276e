"""Writes a folder as the model builder of onnxruntime-genai does, without that package.

The graph has the builder's node forms: lengths from a mask, SimplifiedLayerNormalization, empty
inputs at the end of attention, and one matrix for the embedding and the head.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tests.export import tiny_models
from tests.tiny.tokenizers import of_characters

from ortolan.modeling import DecoderConfig, DecoderModel
from ortolan.modeling.config import BlockConfig, RotaryPositions

GROUP = 32
HEADS, KV_HEADS, HEAD = 4, 2, 16

Array = NDArray[Any]


def plain_llama() -> DecoderConfig:
    """A model without biases, whose head is its embedding."""
    block = BlockConfig(
        mixer=tiny_models.attention(HEADS, KV_HEADS, HEAD),
        feed_forward=tiny_models.GATED,
        norm=tiny_models.RMS,
    )
    tokens: dict[str, Any] = {"bos_token_id": 1, "eos_token_ids": (2,), "tied_head": True}
    return tiny_models.config("llama", RotaryPositions(dim=HEAD), block, block, **tokens)


def write_built(
    folder: Path, module: DecoderModel, *, bits: int | None = None, has_zeros: bool = False
) -> Path:
    """Write a folder for a `plain_llama`.

    Args:
        folder: to create.
        module: the model.
        bits: of rounded weights; None for float32.
        has_zeros: whether they have zero points.
    """
    folder.mkdir()
    weights = {name: value.detach().numpy() for name, value in module.named_parameters()}
    graph = _Graph(weights, bits, has_zeros)
    model = graph.model(len(module.config.blocks))
    onnx.save(
        model,
        str(folder / "model.onnx"),
        save_as_external_data=True,
        location="model.onnx.data",
        size_threshold=0,
    )
    (folder / "genai_config.json").write_text(json.dumps(settings(len(module.config.blocks))))
    of_characters().save(str(folder / "tokenizer.json"))
    return folder


def settings(layers: int) -> dict[str, Any]:
    """Contents of genai_config.json."""
    decoder = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": "model.onnx",
        "head_size": HEAD,
        "hidden_size": tiny_models.WIDTH,
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask"},
        "outputs": {"logits": "logits"},
        "num_attention_heads": HEADS,
        "num_hidden_layers": layers,
        "num_key_value_heads": KV_HEADS,
    }
    model = {
        "bos_token_id": 1,
        "eos_token_id": [2],
        "pad_token_id": 2,
        "context_length": tiny_models.CONTEXT,
        "vocab_size": tiny_models.VOCAB,
        "type": "llama",
        "decoder": decoder,
    }
    return {"model": model, "search": {"do_sample": False, "max_length": tiny_models.CONTEXT}}


class _Graph:
    """Nodes and weights that are added one by one."""

    def __init__(self, weights: Mapping[str, Array], bits: int | None, has_zeros: bool) -> None:
        self._weights, self._bits, self._has_zeros = weights, bits, has_zeros
        self._nodes: list[Any] = []
        self._stored: dict[str, Any] = {}

    def model(self, layers: int) -> onnx.ModelProto:
        seqlens, total = self._lengths()
        hidden, norm = self._embed(), "norm0"
        first = self._store("norm0.weight", self._weights["blocks.0.attention_norm.weight"])
        self._node("SimplifiedLayerNormalization", [hidden, first], [norm], axis=-1, epsilon=1e-6)
        self._tables()
        for layer in range(layers):
            hidden, norm = self._block(layer, layers, hidden, norm, seqlens, total)
        self._product(norm, "head", self._weights["embedding.weight"], "logits")
        graph = helper.make_graph(
            self._nodes, "main", _inputs(layers), _outputs(layers), [*self._stored.values()]
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def _lengths(self) -> tuple[str, str]:
        axis, one = self._constant([1]), self._constant(1)
        self._node("ReduceSum", ["attention_mask", axis], ["count"], keepdims=0)
        self._node("Sub", ["count", axis], ["last"])
        self._node("Cast", ["last"], ["lengths"], to=TensorProto.INT32)
        self._node("Shape", ["attention_mask"], ["mask_shape"])
        self._node("Gather", ["mask_shape", one], ["width"], axis=0)
        self._node("Cast", ["width"], ["total"], to=TensorProto.INT32)
        return "lengths", "total"

    def _embed(self) -> str:
        table = self._weights["embedding.weight"]
        if self._bits is None:
            # The head stores it as (inputs, outputs).
            self._node("Transpose", [self._store("head", table.T)], ["table"], perm=[1, 0])
            self._node("Gather", ["table", "input_ids"], ["embedded"])
            return "embedded"
        codes, *scales = self._codes("head", table)
        width = table.shape[1] * self._bits // 8
        self._node("Reshape", [codes, self._constant([len(table), width])], ["table"])
        numbers = {"bits": self._bits, "block_size": GROUP, "gather_axis": 0, "quantize_axis": 1}
        inputs = ["table", "input_ids", *scales]
        self._node("GatherBlockQuantized", inputs, ["embedded"], "com.microsoft", **numbers)
        return "embedded"

    def _tables(self) -> None:
        angles = np.arange(tiny_models.CONTEXT)[:, None] * 10000.0 ** -(
            np.arange(0, HEAD, 2)[None] / HEAD
        )
        self._store("cos", np.cos(angles).astype(np.float32))
        self._store("sin", np.sin(angles).astype(np.float32))

    def _block(
        self, layer: int, layers: int, hidden: str, norm: str, seqlens: str, total: str
    ) -> tuple[str, str]:
        name, weights = f"blocks.{layer}.", self._weights
        qkv = weights[f"{name}attention.qkv.weight"]
        self._product(norm, f"{layer}.qkv", qkv, f"{layer}.qkv.out")
        past, present = f"past_key_values.{layer}", f"present.{layer}"
        self._node(
            "GroupQueryAttention",
            [
                f"{layer}.qkv.out",
                *("", "", f"{past}.key", f"{past}.value", seqlens, total),
                *("cos", "sin", "", "", ""),
            ],
            [f"{layer}.attended", f"{present}.key", f"{present}.value"],
            "com.microsoft",
            num_heads=HEADS,
            kv_num_heads=KV_HEADS,
            scale=HEAD**-0.5,
            do_rotary=1,
        )
        out = weights[f"{name}attention.out.weight"]
        self._product(f"{layer}.attended", f"{layer}.out", out, f"{layer}.attention")
        scale = weights[f"{name}feed_forward_norm.weight"]
        middle = self._skip(hidden, f"{layer}.attention", scale, f"{layer}.middle", is_last=False)
        feed = f"{name}feed_forward."
        for part in ("gate", "up"):
            self._product(
                middle[1], f"{layer}.{part}", weights[f"{feed}{part}.weight"], f"{layer}.{part}.out"
            )
        self._node("Sigmoid", [f"{layer}.gate.out"], [f"{layer}.sigmoid"])
        self._node("Mul", [f"{layer}.gate.out", f"{layer}.sigmoid"], [f"{layer}.silu"])
        self._node("Mul", [f"{layer}.silu", f"{layer}.up.out"], [f"{layer}.gated"])
        self._product(
            f"{layer}.gated", f"{layer}.down", weights[f"{feed}down.weight"], f"{layer}.fed"
        )
        is_last = layer == layers - 1
        following = "final_norm" if is_last else f"blocks.{layer + 1}.attention_norm"
        return self._skip(
            middle[0],
            f"{layer}.fed",
            weights[f"{following}.weight"],
            f"{layer}.end",
            is_last=is_last,
        )

    def _skip(
        self, hidden: str, added: str, scale: Array, name: str, *, is_last: bool
    ) -> tuple[str, str]:
        """Sum and norm; the last node of a model has no sum."""
        outputs = [f"{name}.norm"] if is_last else [f"{name}.norm", "", "", f"{name}.sum"]
        inputs = [hidden, added, self._store(f"{name}.weight", scale)]
        operator = "SkipSimplifiedLayerNormalization"
        self._node(operator, inputs, outputs, "com.microsoft", epsilon=1e-6)
        return f"{name}.sum", f"{name}.norm"

    def _product(self, value: str, name: str, weight: Array, output: str) -> None:
        if self._bits is None:
            self._node("MatMul", [value, self._store(name, weight.T)], [output])
            return
        numbers = {"N": len(weight), "K": weight.shape[1], "bits": self._bits, "block_size": GROUP}
        inputs = [value, *self._codes(name, weight)]
        self._node("MatMulNBits", inputs, [output], "com.microsoft", accuracy_level=4, **numbers)

    def _codes(self, name: str, weight: Array) -> list[str]:
        """Round to the nearest: codes, scales, and zero points if there are any."""
        bits = self._bits or 0
        middle, largest = 1 << (bits - 1), (1 << bits) - 1
        groups = weight.reshape(len(weight), -1, GROUP)
        zeros: Array = np.full((*groups.shape[:2], 1), middle)
        if self._has_zeros:
            low = np.minimum(groups.min(axis=-1, keepdims=True), 0)
            high = np.maximum(groups.max(axis=-1, keepdims=True), 0)
            scales = (high - low) / largest
            zeros = np.rint(-low / scales)
        else:
            scales = np.abs(groups).max(axis=-1, keepdims=True) / (middle - 1)
        codes = np.clip(np.rint(groups / scales) + zeros, 0, largest).astype(np.uint8)
        stored = [
            self._store(f"{name}_codes", _packed(codes, bits)),
            self._store(f"{name}_scales", scales[..., 0].astype(np.float32)),
        ]
        if self._has_zeros:
            packed = _packed(zeros[..., 0].astype(np.uint8), bits)
            stored.append(self._store(f"{name}_zeros", packed))
        return stored

    def _store(self, name: str, values: Array) -> str:
        self._stored[name] = numpy_helper.from_array(np.ascontiguousarray(values), name)
        return name

    def _constant(self, value: int | list[int]) -> str:
        name = f"constant{len(self._nodes)}"
        tensor = numpy_helper.from_array(np.array(value, np.int64), name)
        self._node("Constant", [], [name], value=tensor)
        return name

    def _node(
        self, operator: str, inputs: list[str], outputs: list[str], domain: str = "", **fields: Any
    ) -> None:
        node = helper.make_node(operator, inputs, outputs, name=outputs[0], domain=domain, **fields)
        self._nodes.append(node)


def _packed(codes: Array, bits: int) -> Array:
    """Two 4-bit codes in a byte, the first in the low half; an odd row ends with half a byte."""
    if bits == 8:
        return codes
    even = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, codes.shape[-1] % 2)])
    low, high = even[..., ::2], even[..., 1::2]
    packed: Array = low | high << 4
    return packed


def _value(name: str, dtype: int, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def _states(prefix: str, layers: int, tokens: str) -> list[onnx.ValueInfoProto]:
    return [
        _value(f"{prefix}.{i}.{kind}", TensorProto.FLOAT, "batch_size", KV_HEADS, tokens, "size")
        for i in range(layers)
        for kind in ("key", "value")
    ]


def _inputs(layers: int) -> list[onnx.ValueInfoProto]:
    return [
        _value("input_ids", TensorProto.INT64, "batch_size", "sequence_length"),
        _value("attention_mask", TensorProto.INT64, "batch_size", "total_sequence_length"),
        *_states("past_key_values", layers, "past_sequence_length"),
    ]


def _outputs(layers: int) -> list[onnx.ValueInfoProto]:
    logits = ("batch_size", "sequence_length", tiny_models.VOCAB)
    return [
        _value("logits", TensorProto.FLOAT, *logits),
        *_states("present", layers, "total_sequence_length"),
    ]


def module() -> DecoderModel:
    """A random `plain_llama`."""
    return tiny_models.decoder(plain_llama(), torch.float32)
