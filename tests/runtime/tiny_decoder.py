"""A tiny decoder as a real bundle, and as a reference in numpy.

The graph (by `onnx.helper`) and the reference (in float64) are independent of each other and of the
exporter, so that tests of the runtime need neither PyTorch nor an export.

Shape letters: S tokens, E width, H heads, K key and value heads, D head width, V vocabulary,
P positions.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper
from tests.runtime import tiny_bundle
from tests.runtime.tiny_bundle import cache_states, external
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from ortolan.runtime.bundle.manifest import Graph, State, Tokens
from ortolan.runtime.bundle.manifest_file import encode
from ortolan.runtime.graph.products import products
from ortolan.runtime.verification.certificate import Certificate, Probe
from ortolan.runtime.verification.certificate_files import write_certificate
from ortolan.runtime.verification.comparison import summarize
from ortolan.runtime.verification.report import Thresholds
from ortolan.runtime.verification.weight_sums import (
    ExpectedWeights,
    block_sizes,
    block_sums,
    weight_inputs,
)

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_WIDTH = 2, 32, 4, 2, 16
VOCABULARY = 97
BOS, EOS = 95, 96
"""Ids of the special tokens of `tokenizer_json`."""
CONTEXT = 1100
ALIGNMENT = 4096
TOP_K = 8
PROBES = (5, 40, 150)
"""Lengths of the probes of the certificate."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyDecoder:
    """A bundle and the weights in it."""

    path: Path
    weights: dict[str, NDArray[np.float32]]
    recurrent: bool

    def reference(self, ids: Sequence[int]) -> Floats:
        """Return the logits of every position, `(S, V)`, without a cache."""
        return reference_logits(self.weights, ids, recurrent=self.recurrent)


def write_bundle(
    folder: Path,
    *,
    split: bool = False,
    recurrent: bool = False,
    takes_one: bool = False,
    poisoned: int | None = None,
    context_length: int = CONTEXT,
    tokens: Tokens | None = None,
    tokenizer: bytes | None = None,
    others: Mapping[str, bytes] = {},
    devices: tuple[str, ...] = ("cpu",),
    seed: int = 0,
) -> TinyDecoder:
    """Write a bundle with random weights.

    Args:
        split: two graphs over the same weights instead of one.
        recurrent: add a state of fixed size.
        poisoned: an id whose embedding is NaN.
        others: more files by name.
    """
    weights = random_weights(seed, context_length)
    reference, sound = _certificate(weights, recurrent=recurrent), dict(weights)
    if poisoned is not None:
        weights |= {"embedding": _poisoned(weights["embedding"], poisoned)}
    blob, places = _pack(weights)
    blob_name = f"weights-{hashlib.sha256(blob).hexdigest()[:16]}.bin"
    graphs: dict[str, Literal[1] | None]
    graphs = {"prefill": None, "decode": 1} if split else {"decoder": 1 if takes_one else None}
    contents = {blob_name: blob, **others}
    contents |= {} if tokenizer is None else {"tokenizer.json": tokenizer}
    graph_of = partial(_graph, weights, places, blob_name, recurrent=recurrent)
    written = [_encoded(graph_of(sequence=sequence)) for sequence in graphs.values()]
    contents |= {f"{role}.onnx": data for role, data in zip(graphs, written, strict=True)}
    reference = replace(reference, weights=_expected_weights(sound, written))
    folder.mkdir(parents=True)
    write_certificate(folder, reference)
    contents |= {path.name: path.read_bytes() for path in folder.iterdir()}
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    manifest = tiny_bundle.manifest(
        contents,
        devices=devices,
        context_length=context_length,
        vocab_size=VOCABULARY,
        graphs={role: Graph(file=f"{role}.onnx", sequence=n) for role, n in graphs.items()},
        states=_states(recurrent=recurrent),
        weights=(blob_name,),
        tokens=Tokens() if tokens is None else tokens,
    )
    (folder / "manifest.json").write_bytes(encode(manifest))
    return TinyDecoder(path=folder, weights=weights, recurrent=recurrent)


def _encoded(graph: GraphProto) -> bytes:
    data: bytes = tiny_bundle.model_of(graph).SerializeToString(deterministic=True)
    return data


def _poisoned(embedding: NDArray[np.float32], token: int) -> NDArray[np.float32]:
    changed = embedding.copy()
    changed[token] = np.nan
    return changed


def tokenizer_json(special: Sequence[str] = ("<bos>", "<eos>")) -> bytes:
    """Return a tokenizer with an id for each printable ASCII character, and special tokens."""
    printable = [chr(code) for code in range(0x20, 0x7F)]
    # the letter that ByteLevel uses for a space
    letters = ["\u0120" if letter == " " else letter for letter in printable]
    model = BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([*special])
    return tokenizer.to_str().encode()


def random_weights(seed: int, positions: int) -> dict[str, NDArray[np.float32]]:
    """Return weights whose logits are far apart, so that no two tokens are nearly tied."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> NDArray[np.float32]:
        values = random.standard_normal((rows, columns)) * gain / rows**0.5
        return np.asarray(values, np.float32)

    weights = {"embedding": random.standard_normal((VOCABULARY, WIDTH)).astype(np.float32)}
    for layer in range(LAYERS):
        weights[f"{layer}.q"] = matrix(WIDTH, HEADS * HEAD_WIDTH, 2.0)
        weights[f"{layer}.k"] = matrix(WIDTH, KV_HEADS * HEAD_WIDTH, 2.0)
        weights[f"{layer}.v"] = matrix(WIDTH, KV_HEADS * HEAD_WIDTH)
        weights[f"{layer}.o"] = matrix(HEADS * HEAD_WIDTH, WIDTH)
    weights["head"] = matrix(WIDTH, VOCABULARY, 2.0)
    exponents = np.arange(0, HEAD_WIDTH, 2) / HEAD_WIDTH
    angles = np.outer(np.arange(positions), 1 / 10000**exponents)
    weights["cos"] = np.cos(angles).astype(np.float32)
    weights["sin"] = np.sin(angles).astype(np.float32)
    return weights


def assert_close(got: NDArray[Any], expected: NDArray[Any]) -> None:
    """Compare float32 logits with float64, or with sums in another order."""
    largest = float(np.abs(expected).max(initial=0))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=max(3e-4, 2e-5 * largest))


# --- the reference ----------------------------------------------------------------------------


def reference_logits(
    weights: dict[str, NDArray[np.float32]], ids: Sequence[int], *, recurrent: bool = False
) -> Floats:
    """Compute logits `(S, V)` in float64, head by head and token by token."""
    table = {name: array.astype(np.float64) for name, array in weights.items()}
    hidden_SE = table["embedding"][list(ids)]
    if recurrent:
        hidden_SE = hidden_SE + np.tanh(np.cumsum(hidden_SE, axis=0))
    for layer in range(LAYERS):
        hidden_SE = hidden_SE + _attention(table, layer, hidden_SE)
    logits_SV: Floats = hidden_SE @ table["head"]
    return logits_SV


def _attention(table: dict[str, Floats], layer: int, hidden_SE: Floats) -> Floats:
    count = len(hidden_SE)
    q_SHD = (hidden_SE @ table[f"{layer}.q"]).reshape(count, HEADS, HEAD_WIDTH)
    k_SKD = (hidden_SE @ table[f"{layer}.k"]).reshape(count, KV_HEADS, HEAD_WIDTH)
    v_SKD = (hidden_SE @ table[f"{layer}.v"]).reshape(count, KV_HEADS, HEAD_WIDTH)
    q_SHD, k_SKD = _rotate(table, q_SHD), _rotate(table, k_SKD)
    out_SHD = np.zeros_like(q_SHD)
    for head in range(HEADS):
        group = head // (HEADS // KV_HEADS)
        for position in range(count):
            scores = k_SKD[: position + 1, group] @ q_SHD[position, head] / HEAD_WIDTH**0.5
            odds = np.exp(scores - scores.max())
            out_SHD[position, head] = (odds / odds.sum()) @ v_SKD[: position + 1, group]
    return out_SHD.reshape(count, HEADS * HEAD_WIDTH) @ table[f"{layer}.o"]


def _rotate(table: dict[str, Floats], x_SND: Floats) -> Floats:
    cos, sin = table["cos"][: len(x_SND), None], table["sin"][: len(x_SND), None]
    left, right = np.split(x_SND, 2, axis=-1)
    return np.concatenate((left * cos - right * sin, left * sin + right * cos), axis=-1)


# --- the graph --------------------------------------------------------------------------------


def _states(*, recurrent: bool) -> tuple[State, ...]:
    running_sum = State(
        name="sum",
        input="past_sum",
        output="present_sum",
        shape=("batch", 1, WIDTH),
        dtype="float32",
        update="replace",
    )
    return cache_states(LAYERS, KV_HEADS, HEAD_WIDTH) + (running_sum,) * recurrent


def _graph(
    weights: dict[str, NDArray[np.float32]],
    places: dict[str, tuple[int, int]],
    blob_name: str,
    *,
    sequence: int | None,
    recurrent: bool,
) -> GraphProto:
    new_tokens = "sequence" if sequence is None else sequence
    value = helper.make_tensor_value_info
    inputs = [
        value("input_ids", TensorProto.INT64, ["batch", new_tokens]),
        value("seqlens_k", TensorProto.INT32, ["batch"]),
        value("total_sequence_length", TensorProto.INT32, []),
        value("logit_positions", TensorProto.INT64, ["batch", "rows"]),
    ]
    outputs = [value("logits", TensorProto.FLOAT, ["batch", "rows", VOCABULARY])]
    for state in _states(recurrent=recurrent):
        inputs.append(_state_info(state.input, state))
        outputs.append(_state_info(state.output, state))
    initializers = [
        external(name, weights[name].shape, blob_name, *places[name]) for name in weights
    ]
    initializers.append(helper.make_tensor("last_axis", TensorProto.INT64, [1], [-1]))
    nodes = [helper.make_node("Gather", ["embedding", "input_ids"], ["hidden.0"])]
    if recurrent:
        initializers += [
            helper.make_tensor("axis", TensorProto.INT64, [], [1]),
            helper.make_tensor("end", TensorProto.INT64, [1], [2**31]),
            helper.make_tensor("first_axis", TensorProto.INT64, [1], [1]),
            helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0]),
        ]
        nodes = _recurrence()
    for layer in range(LAYERS):
        nodes += _layer(layer)
    nodes += [
        helper.make_node("Unsqueeze", ["logit_positions", "last_axis"], ["rows"]),
        helper.make_node("GatherND", [f"hidden.{LAYERS}", "rows"], ["chosen"], batch_dims=1),
        helper.make_node("MatMul", ["chosen", "head"], ["logits"]),
    ]
    return helper.make_graph(nodes, "tiny", inputs, outputs, initializers)


def _layer(layer: int) -> list[NodeProto]:
    hidden = f"hidden.{layer}"
    node = helper.make_node
    projected = [f"{layer}.{part}.out" for part in "qkv"]
    past, present = (
        [f"{side}.{layer}.{part}" for part in ("key", "value")]
        for side in ("past_key_values", "present")
    )
    return [
        *(node("MatMul", [hidden, f"{layer}.{part}"], [f"{layer}.{part}.out"]) for part in "qkv"),
        node(
            "GroupQueryAttention",
            [*projected, *past, "seqlens_k", "total_sequence_length", "cos", "sin"],
            [f"{layer}.attention", *present],
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=KV_HEADS,
            do_rotary=1,
            scale=HEAD_WIDTH**-0.5,
        ),
        node("MatMul", [f"{layer}.attention", f"{layer}.o"], [f"{layer}.o.out"]),
        node("Add", [hidden, f"{layer}.o.out"], [f"hidden.{layer + 1}"]),
    ]


def _recurrence() -> list[NodeProto]:
    """Add the squashed running sum of embeddings to each of them.

    A node reads the old state after another has written the new one, as graphs may.
    """
    node = helper.make_node
    return [
        node("Gather", ["embedding", "input_ids"], ["embedded"]),
        node("CumSum", ["embedded", "axis"], ["new_sums"]),
        node("Slice", ["new_sums", "last_axis", "end", "first_axis"], ["new_sum"]),
        node("Add", ["past_sum", "new_sum"], ["present_sum"]),
        # reads the old state after the new one
        node("Mul", ["present_sum", "zero"], ["nothing"]),
        node("Add", ["past_sum", "nothing"], ["old_sum"]),
        node("Add", ["old_sum", "new_sums"], ["sums"]),
        node("Tanh", ["sums"], ["squashed"]),
        node("Add", ["embedded", "squashed"], ["hidden.0"]),
    ]


def _state_info(name: str, state: State) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(state.shape))


def _pack(weights: dict[str, NDArray[np.float32]]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """Pack weights at aligned offsets, and return the blob with (offset, length) by name."""
    blob, places = bytearray(), {}
    for name, array in weights.items():
        blob += bytes(-len(blob) % ALIGNMENT)
        places[name] = (len(blob), array.nbytes)
        blob += array.tobytes()
    return bytes(blob), places


def _certificate(weights: dict[str, NDArray[np.float32]], *, recurrent: bool) -> Certificate:
    random = np.random.default_rng(1)
    token_ids = random.integers(0, VOCABULARY, sum(PROBES)).astype(np.int32)
    ends = np.cumsum(PROBES)
    probes = np.split(token_ids, ends[:-1])
    logits = [reference_logits(weights, ids.tolist(), recurrent=recurrent) for ids in probes]
    next_ids = np.concatenate([np.roll(ids, -1) for ids in probes])
    next_logits = np.concatenate(logits)[np.arange(len(next_ids)), next_ids]
    return Certificate(
        probes=tuple(Probe(name=f"tokens {n}", length=n) for n in PROBES),
        thresholds=Thresholds(max_abs_delta=1e-4, mean_kl=1e-5, near_tie=1e-3),
        measured=None,
        token_ids=token_ids,
        text="random ids",
        reference=replace(
            summarize(np.concatenate(logits), TOP_K), next_logits=next_logits.astype(np.float32)
        ),
    )


def _expected_weights(
    weights: dict[str, NDArray[np.float32]], graphs: Iterable[bytes]
) -> ExpectedWeights:
    """Return the sums of every product of some graphs, and the hashes of all other weights."""
    by_weight = {product.weight: product for data in graphs for product in products(data)}
    sums, sizes = [], []
    for name, product in sorted(by_weight.items()):
        values_NK = weights[name].T if product.by_columns else weights[name]
        x_RK = weight_inputs(product.inputs).astype(np.float64)
        sums.append(block_sums(x_RK @ values_NK.T.astype(np.float64)))
        sizes.append(block_sizes(np.abs(x_RK).max(0)[None] @ np.abs(values_NK.T))[0])
    read = {name for product in by_weight.values() for name in product.reads}
    return ExpectedWeights(
        outputs={name: product.outputs for name, product in by_weight.items()},
        sums=np.concatenate(sums, axis=1).astype(np.float32),
        sizes=np.concatenate(sizes).astype(np.float32),
        stored={
            name: hashlib.sha256(values.tobytes()).hexdigest()
            for name, values in weights.items()
            if name not in read
        },
    )
