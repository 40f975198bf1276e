"""A tiny encoder as a real bundle, and as a reference in numpy.

The state of each token depends on the mean of all tokens within the length, which reveals unmasked
padding. Weights are inside the graph.

Shape letters: B batch, T tokens, E width, V vocabulary, L labels, C channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from tests.runtime import tiny_bundle
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from ortolan.runtime.bundle.image_sources import ImageSource
from ortolan.runtime.bundle.manifest import Graph, Output, Tokens
from ortolan.runtime.bundle.manifest_file import encode
from ortolan.runtime.bundle.text_source import TextSource

WIDTH, HEADS, MAX_TOKENS = 8, 2, 24
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijkl")
VOCABULARY = len(WORDS)
LABELS = ("no", "perhaps", "yes")
CHANNELS, HEIGHT, WIDTH_PIXELS = 3, 4, 6
IMAGE = ImageSource(
    channels=CHANNELS,
    height=HEIGHT,
    width=WIDTH_PIXELS,
    mean=(0.5, 0.4, 0.3),
    std=(0.5, 0.25, 0.2),
    scale=1 / 255,
    resample="bilinear",
)

OF_LABELS = ("labels", "tags", "scores")
"""Outputs with labels. All have the same graph."""

SIZES = {
    **{"states": WIDTH, "logits": VOCABULARY, "embedding": WIDTH},
    **dict.fromkeys(OF_LABELS, len(LABELS)),
}

KINDS: tuple["OutputKind", ...] = ("states", "logits", "labels", "tags", "scores", "embedding")

Floats = NDArray[np.float64]
OutputKind = Literal["states", "logits", "labels", "tags", "scores", "embedding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyEncoder:
    """A bundle and the weights in it."""

    path: Path
    weights: dict[str, NDArray[np.float32]]
    kind: OutputKind

    def reference(self, ids: Sequence[int]) -> Floats:
        """Compute the output for one text, without batch and padding."""
        table = {name: array.astype(np.float64) for name, array in self.weights.items()}
        x_TE = table["embedding"][list(ids)]
        states_TE = np.tanh(x_TE @ table["own"] + x_TE.mean(0) @ table["others"])
        return _head(table, states_TE, self.kind)

    def image_reference(self, pixels_CHW: NDArray[np.float32]) -> Floats:
        """Compute the output for one image."""
        table = {name: array.astype(np.float64) for name, array in self.weights.items()}
        states_TE = np.tanh(pixels_CHW.reshape(1, -1).astype(np.float64) @ table["pixels"])
        return _head(table, states_TE, self.kind)

    def map_reference(self, ids: Sequence[int]) -> Floats:
        """Compute attention probabilities `(heads, T, T)`."""
        x_TE = self.weights["embedding"].astype(np.float64)[list(ids)]
        scores_HTT = np.stack([x_TE @ x_TE.T, -(x_TE @ x_TE.T)])
        odds_HTT = np.exp(scores_HTT - scores_HTT.max(-1, keepdims=True))
        shares_HTT: Floats = odds_HTT / odds_HTT.sum(-1, keepdims=True)
        return shares_HTT


def _head(table: dict[str, Floats], states_TE: Floats, kind: OutputKind) -> Floats:
    mean_E = states_TE.mean(0)
    match kind:
        case "states":
            return states_TE
        case "logits":
            return np.asarray(states_TE @ table["vocabulary"])
        case "labels" | "tags" | "scores":
            return np.asarray(mean_E @ table["labels"])
        case _:
            return np.asarray(mean_E / np.linalg.norm(mean_E))


def tokenizer_json() -> bytes:
    """Return a tokenizer with an id for each word, and `[CLS]` and `[SEP]` around a text."""
    ids = {word: index for index, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(list(WORDS[:4]))
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer.to_str().encode()


def write_bundle(
    folder: Path,
    *,
    kind: OutputKind = "labels",
    image: ImageSource | None = None,
    tokenizer: bool = True,
    maps: bool = False,
    labels: tuple[str, ...] = LABELS,
    poisoned: int | None = None,
    source: ImageSource | TextSource | None = None,
    size: int | None = None,
) -> TinyEncoder:
    """Write a bundle with random weights.

    Args:
        kind: of output.
        image: input instead of text.
        tokenizer: include one.
        maps: include a graph of attention maps.
        poisoned: an id whose embedding is NaN.
        source: input in the manifest, if different from the graph.
        size: output size in the manifest, if different from the graph.
    """
    weights = _weights()
    weights["labels"] = weights["labels"][:, : len(labels)]
    if poisoned is not None:
        weights["embedding"][poisoned] = np.nan
    sizes = {**SIZES, **dict.fromkeys(OF_LABELS, len(labels))}
    contents = {"certificate.json": b"{}", "encoder.onnx": _encoder(weights, kind, image)}
    graphs = {"encoder": Graph(file="encoder.onnx")}
    if maps:
        contents["attention.onnx"] = _attention(weights)
        graphs["attention"] = Graph(file="attention.onnx")
    if tokenizer and image is None:
        contents["tokenizer.json"] = tokenizer_json()
    manifest = tiny_bundle.manifest(
        contents,
        kind="encoder",
        context_length=1 if image else MAX_TOKENS,
        vocab_size=1 if image else VOCABULARY,
        graphs=graphs,
        tokens=Tokens() if image else Tokens(pad=0),
        source=source or image or TextSource(max_tokens=MAX_TOKENS),
        output=Output(
            kind=kind, size=size or sizes[kind], labels=labels if kind in OF_LABELS else ()
        ),
        attention_maps=("encoder.0.self",) if maps else (),
    )
    folder.mkdir(parents=True)
    for name, data in (contents | {"manifest.json": encode(manifest)}).items():
        (folder / name).write_bytes(data)
    return TinyEncoder(path=folder, weights=weights, kind=kind)


def _weights() -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(0)
    shapes = {
        "embedding": (VOCABULARY, WIDTH),
        "own": (WIDTH, WIDTH),
        "others": (WIDTH, WIDTH),
        "labels": (WIDTH, len(LABELS)),
        "vocabulary": (WIDTH, VOCABULARY),
        "pixels": (CHANNELS * HEIGHT * WIDTH_PIXELS, WIDTH),
    }
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


# --- the graphs -------------------------------------------------------------------------------


def _encoder(
    weights: dict[str, NDArray[np.float32]], kind: OutputKind, image: ImageSource | None
) -> bytes:
    node = helper.make_node
    if image:
        shape: list[Any] = ["batch", image.channels, image.height, image.width]
        inputs = [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, shape)]
        nodes = [
            node("Reshape", ["pixels", "one_row"], ["flat"]),
            node("MatMul", ["flat", "pixels_weight"], ["sums"]),
            node("Tanh", ["sums"], ["states"]),
            node("ReduceMean", ["states", "axis"], ["mean"], keepdims=0),
        ]
    else:
        inputs = _text_inputs()
        nodes = [*_embedded(), *_text_states()]
    if kind == "embedding":
        nodes += [
            node("ReduceL2", ["mean", "axis"], ["norm"], keepdims=1),
            node("Div", ["mean", "norm"], ["output"]),
        ]
    elif kind == "states":
        nodes.append(node("Mul", ["states", "unit"], ["output"]))
    else:
        factors = ["states", "vocabulary"] if kind == "logits" else ["mean", "labels"]
        nodes.append(node("MatMul", factors, ["output"]))
    axes = ["batch", "tokens", "size"] if kind in ("states", "logits") else ["batch", "size"]
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, axes)
    return _model(nodes, inputs, [output], weights)


def _text_inputs() -> list[ValueInfoProto]:
    return [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"]),
        helper.make_tensor_value_info("lengths", TensorProto.INT32, ["batch"]),
    ]


def _embedded() -> list[NodeProto]:
    """Compute `x`, `(B, T, E)`, and `inside`, `(B, T)`, which is true within the length."""
    node = helper.make_node
    return [
        node("Gather", ["embedding", "input_ids"], ["x"]),
        node("Shape", ["input_ids"], ["count"], start=1, end=2),
        node("Squeeze", ["count"], ["tokens"]),
        node("Range", ["zero", "tokens", "one"], ["slots"]),
        node("Cast", ["lengths"], ["lengths64"], to=TensorProto.INT64),
        node("Unsqueeze", ["lengths64", "axis"], ["ends"]),
        node("Less", ["slots", "ends"], ["inside"]),
    ]


def _text_states() -> list[NodeProto]:
    node = helper.make_node
    return [
        node("Unsqueeze", ["inside", "last"], ["inside1"]),
        node("Cast", ["ends"], ["divisor"], to=TensorProto.FLOAT),
        node("Where", ["inside1", "x", "nothing"], ["kept"]),
        node("ReduceSum", ["kept", "axis"], ["sum_x"], keepdims=0),
        node("Div", ["sum_x", "divisor"], ["mean_x"]),
        node("MatMul", ["mean_x", "others"], ["of_others"]),
        node("Unsqueeze", ["of_others", "axis"], ["of_others1"]),
        node("MatMul", ["x", "own"], ["of_own"]),
        node("Add", ["of_own", "of_others1"], ["sums"]),
        node("Tanh", ["sums"], ["states"]),
        node("Where", ["inside1", "states", "nothing"], ["kept_states"]),
        node("ReduceSum", ["kept_states", "axis"], ["sum_states"], keepdims=0),
        node("Div", ["sum_states", "divisor"], ["mean"]),
    ]


def _attention(weights: dict[str, NDArray[np.float32]]) -> bytes:
    node = helper.make_node
    nodes = [
        *_embedded(),
        node("Transpose", ["x"], ["x_t"], perm=[0, 2, 1]),
        node("MatMul", ["x", "x_t"], ["scores"]),
        node("Neg", ["scores"], ["opposite"]),
        node("Unsqueeze", ["scores", "axis"], ["first"]),
        node("Unsqueeze", ["opposite", "axis"], ["second"]),
        node("Concat", ["first", "second"], ["heads"], axis=1),
        node("Unsqueeze", ["inside", "two_axes"], ["keys"]),
        node("Where", ["keys", "heads", "never"], ["masked"]),
        node("Softmax", ["masked"], ["encoder.0.self"], axis=-1),
    ]
    shape: list[Any] = ["batch", HEADS, "queries", "keys"]
    output = helper.make_tensor_value_info("encoder.0.self", TensorProto.FLOAT, shape)
    return _model(nodes, _text_inputs(), [output], weights)


def _model(
    nodes: list[NodeProto],
    inputs: list[ValueInfoProto],
    outputs: list[ValueInfoProto],
    weights: dict[str, NDArray[np.float32]],
) -> bytes:
    constants: dict[str, NDArray[Any]] = {
        **{("pixels_weight" if name == "pixels" else name): w for name, w in weights.items()},
        "zero": np.array(0, np.int64),
        "one": np.array(1, np.int64),
        "axis": np.array([1], np.int64),
        "unit": np.array(1, np.float32),
        "last": np.array([-1], np.int64),
        "two_axes": np.array([1, 2], np.int64),
        "one_row": np.array([0, 1, -1], np.int64),
        "nothing": np.array(0, np.float32),
        "never": np.array(-1e30, np.float32),
    }
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "tiny",
        inputs,
        outputs,
        [numpy_helper.from_array(array, name) for name, array in constants.items() if name in used],
    )
    return bytes(tiny_bundle.model_of(graph).SerializeToString(deterministic=True))
