"""Bundles for CUDA, checked without a GPU.

In bfloat16 nothing runs here: its graphs are typed and placed by tables, and a twin of each, in
which every bfloat16 is a float32 of the same value, computes what PyTorch computes.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper
from syrupy.assertion import SnapshotAssertion
from tests.export import tiny_models
from tests.export.graph_runs import Steps, assert_close, opened, run
from tests.export.models_of_kinds import (
    encoder_config,
    image_config,
    module_of,
    one_layer,
    seq2seq_config,
)
from tests.modeling import kinds
from tests.refusals import refusal
from torch import Tensor

import ortolan
from ortolan.export.errors import ExportError
from ortolan.export.options import ExportOptions, Int4
from ortolan.export.proof.placement import check_placement
from ortolan.export.proof.weight_sums import WeightSums
from ortolan.export.quantize.rounding import Part, QuantizedWeight
from ortolan.export.quantize.rtn import quantize
from ortolan.export.scheme import Scheme
from ortolan.export.settings import resolve
from ortolan.export.weights.blob import BlobWriter
from ortolan.export.weights.codes import write_codes
from ortolan.modeling.config import (
    AlibiPositions,
    EmbeddingHead,
    NoPositions,
    Positions,
    RelativeBiasPositions,
    RotaryPositions,
    TokenInput,
)
from ortolan.modeling.models.model import TransformerModel
from ortolan.runtime import Bundle, DeviceError, verify
from ortolan.runtime.graph.schema import parse_model
from ortolan.runtime.inspect.placement import node_kinds, placement
from ortolan.runtime.verification.certificate_files import read_certificate

pytestmark = pytest.mark.slow

BFLOAT16, FLOAT = TensorProto.BFLOAT16, TensorProto.FLOAT


def small_decoder(positions: Positions, **attention: Any) -> TransformerModel:
    block = kinds.with_attention(head_dim=16, **attention)
    config = kinds.decoder_config(positions, (block,), final_norm=kinds.LAYER)
    return module_of(replace(config, vocab_size=tiny_models.VOCAB))


MODULES: dict[str, Callable[[], TransformerModel]] = {
    "llama": lambda: tiny_models.decoder(tiny_models.llama(layers=1)),
    "gpt2": lambda: tiny_models.decoder(one_layer(tiny_models.gpt2())),
    "mistral": lambda: tiny_models.decoder(tiny_models.mistral()),
    "qwen2": lambda: tiny_models.decoder(tiny_models.qwen2()),
    "modern": lambda: tiny_models.decoder(tiny_models.modern()),
    "distances": lambda: small_decoder(AlibiPositions()),
    "sinks": lambda: small_decoder(RotaryPositions(dim=16), sinks=True, sliding_window=4),
    "encoder": lambda: module_of(
        one_layer(encoder_config(head=EmbeddingHead(pooling=("mean",), normalised=True)))
    ),
    "encoder of wide heads": lambda: module_of(
        kinds.encoder_config(
            NoPositions(),
            kinds.with_attention(head_dim=16),
            input=TokenInput(vocab_size=tiny_models.VOCAB),
        )
    ),
    "images": lambda: module_of(one_layer(image_config())),
    "seq2seq": lambda: module_of(
        one_layer(seq2seq_config(RelativeBiasPositions(buckets=8, max_distance=11)))
    ),
}

DECODERS = ("llama", "gpt2", "qwen2", "distances", "sinks", "mistral")

SCORES = {"Add", "Cast", "Concat", "Expand", "Mul", "Slice", "Softmax", "Unsqueeze", "Where"}

IN_FLOAT32 = {
    "distances": SCORES,
    "sinks": SCORES | {"Shape"},
    "modern": SCORES | {"Shape"},
    "encoder of wide heads": SCORES,
    # Pixels come in float32.
    "images": {"Cast", "CastLike", "Shape"},
    # Long sums, lengths and squares.
    "encoder": {"ReduceSum", "Div", "Cast", "ReduceL2", "Clip", "Shape", "Expand"},
}

IDS = np.random.default_rng(0).integers(5, 90, (3, 9))

LENGTHS = np.array([9, 2, 5], np.int32)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bundle]:
    @cache
    def export(name: str) -> Bundle:
        out = tmp_path_factory.mktemp(name) / "bundle"
        bundle: Bundle = ortolan.export(MODULES[name](), out, device="cuda", precision="bf16")
        return bundle

    return export


def graph_of(bundle: Bundle, role: str, *, weights: bool = False) -> ModelProto:
    path = bundle.file(bundle.manifest.graphs[role].file)
    return onnx.load(str(path), load_external_data=weights)


def widened(tensor: TensorProto) -> TensorProto:
    """The same numbers in float32."""
    if tensor.data_type != BFLOAT16:
        return tensor
    values = numpy_helper.to_array(tensor).astype(np.float32)
    return numpy_helper.from_array(values, tensor.name)


def twin(bundle: Bundle, role: str, folder: Path) -> Any:
    """A session of a graph in which every bfloat16 is a float32."""
    model = graph_of(bundle, role, weights=True)
    graph = model.graph
    for index, tensor in enumerate(graph.initializer):
        graph.initializer[index].CopyFrom(widened(tensor))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                attribute.t.CopyFrom(widened(attribute.t))
            if (node.op_type, attribute.name, attribute.i) == ("Cast", "to", BFLOAT16):
                attribute.i = FLOAT
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == BFLOAT16:
            value.type.tensor_type.elem_type = FLOAT
    assert b"bfloat16" not in model.SerializeToString()
    path = folder / f"{role}.onnx"
    onnx.save(model, str(path))
    return opened(path)


def rounded(name: str) -> Any:
    """The module in float32, with weights and tables rounded to bfloat16."""
    return MODULES[name]().to(torch.bfloat16).float().eval()


@pytest.mark.parametrize("name", MODULES)
def test_every_node_has_a_kernel_and_computes_in_bfloat16_but_where_it_is_too_coarse(
    name: str, exported: Callable[[str], Bundle]
) -> None:
    bundle = exported(name)
    placed = placement(bundle, "cuda")
    assert placed.placed > 10
    assert placed.misplaced == ()
    assert {each.fallback for each in placement(bundle, "cpu").misplaced} == {"none"}
    assert {state.dtype for state in bundle.manifest.states} <= {"bfloat16"}
    for role in bundle.manifest.graphs:
        model = graph_of(bundle, role)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        kinds = node_kinds(parse_model(model.SerializeToString()).graph)
        assert {kind.dtype for kind in kinds} <= {"bfloat16", "float32", "int64", "int32", "bool"}
        wide = {kind.operator.partition("::")[2] for kind in kinds if kind.dtype == "float32"}
        assert wide <= IN_FLOAT32.get(name, set())


@pytest.mark.parametrize("name", ["llama", "distances", "sinks", "encoder of wide heads"])
def test_attention_is_one_node_only_where_its_kernel_is_right(
    name: str, exported: Callable[[str], Bundle]
) -> None:
    (role,) = exported(name).manifest.graphs
    operators = {node.op_type for node in graph_of(exported(name), role).graph.node}
    assert ("GroupQueryAttention" in operators) == (name == "llama")
    assert ("Softmax" in operators) == (name != "llama")


def stepped(decoder: Any, source: dict[str, NDArray[Any]] | None = None) -> NDArray[np.float32]:
    """Logits of a prompt, then of a token at a time."""
    steps = Steps(decoder, len(IDS), source)
    got = [steps(IDS[:, :4], [4] * 3), *(steps(IDS[:, i : i + 1], [1] * 3) for i in range(4, 9))]
    return np.concatenate(got, 1)


def assert_computes(name: str, got: NDArray[np.float32], *inputs: NDArray[Any]) -> None:
    with torch.inference_mode():
        wanted: Tensor = rounded(name)(*map(torch.from_numpy, inputs))
    assert wanted.std() > 0.1  # not a constant model
    assert_close(got, wanted.numpy(), delta=1e-4)


@pytest.mark.parametrize("name", DECODERS)
def test_twin_of_a_decoder_equals_pytorch_step_by_step(
    name: str, exported: Callable[[str], Bundle], tmp_path: Path
) -> None:
    assert_computes(name, stepped(twin(exported(name), "decoder", tmp_path)), IDS)


def test_twins_of_encoders_equal_pytorch(exported: Callable[[str], Bundle], tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).normal(size=(2, 3, 9, 6)).astype(np.float32)
    pixels = torch.from_numpy(pixels).to(torch.bfloat16).float().numpy()
    given: dict[str, dict[str, NDArray[Any]]] = {
        "encoder": {"input_ids": IDS, "lengths": LENGTHS},
        "images": {"pixels": pixels},
    }
    for name, inputs in given.items():
        (tmp_path / name).mkdir()
        got = run(twin(exported(name), "encoder", tmp_path / name), inputs)["output"]
        assert_computes(name, got, *inputs.values())


def test_twins_of_an_encoder_decoder_equal_pytorch(
    exported: Callable[[str], Bundle], tmp_path: Path
) -> None:
    encoder, decoder = (
        twin(exported("seq2seq"), role, tmp_path) for role in ("encoder", "decoder")
    )
    source = run(encoder, {"input_ids": IDS, "lengths": LENGTHS})
    got = stepped(decoder, {**source, "source_lengths": LENGTHS})
    assert_computes("seq2seq", got, IDS, IDS, LENGTHS)


def test_bundle_that_the_cpu_cannot_compute_says_so_and_keeps_its_reference(
    exported: Callable[[str], Bundle],
) -> None:
    bundle = exported("llama")
    assert bundle.manifest.devices == ("cuda",)
    assert bundle.manifest.unverified is not None
    assert "no kernels for bfloat16; run `ortolan verify`" in bundle.manifest.unverified
    proof = read_certificate(bundle)
    assert proof.measured is None
    assert proof.thresholds.max_abs_delta is not None
    for device in ("cpu", "auto"):
        with pytest.raises(DeviceError, match=device):
            verify(bundle.path, device=device)


def test_int4_for_cuda_has_float16_around_it_and_is_proven_on_the_cpu(tmp_path: Path) -> None:
    bundle = ortolan.export(
        MODULES["qwen2"](),
        tmp_path / "bundle",
        device="cuda",
        precision=Int4(method="rtn", group_size=32, asymmetric=True),
        options=ExportOptions(max_kl=1.0),
    )
    assert bundle.manifest.devices == ("cuda", "cpu")
    assert bundle.manifest.unverified is None
    assert read_certificate(bundle).measured is not None
    assert {state.dtype for state in bundle.manifest.states} == {"float16"}
    assert {tensor.bits for tensor in bundle.manifest.quantized} == {4, 8}
    assert placement(bundle, "cuda").misplaced == ()
    floats = {tensor.dtype for tensor in bundle.graphs["decoder"].external}
    assert floats == {"float16", "uint8"}
    products = [n for n in graph_of(bundle, "decoder").graph.node if n.op_type == "MatMulNBits"]
    assert products
    assert all(a.name != "accuracy_level" for node in products for a in node.attribute)


def codes(folder: Path, weight: Tensor, dtype: torch.dtype) -> float:
    """Write a weight in 4 bits, and return its error."""
    scheme = Scheme(bits=4, group=32)
    parts = iter([Part(rows=weight, codes=quantize(weight, scheme))])
    with BlobWriter(folder, sizes={}, sums=WeightSums(())) as writer:
        given = [QuantizedWeight(name="w", scheme=scheme, method="rtn", parts=parts)]
        (written,) = write_codes(writer, given, dtype=dtype)
        writer.finish()
    return written.error


def test_scales_in_float16_count_in_the_error_of_a_weight(tmp_path: Path) -> None:
    # Scales of about 1e-7, of which float16 has few.
    weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)) * 3e-7
    assert codes(tmp_path, weight, torch.float32) < 0.12
    assert codes(tmp_path, weight, torch.float16) > 0.2
    with pytest.raises(ExportError, match=r"w\.scales .*float16"):
        codes(tmp_path, weight * 1e13, torch.float16)


def clipped(dtype: int, operator: str = "Clip") -> dict[str, ir.Model]:
    domain = "com.microsoft" if operator == "GroupQueryAttention" else ""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"], domain=domain)],
        "graph",
        [value("x", dtype, [2])],
        [value("y", dtype, [2])],
    )
    return {"encoder": ir.from_proto(helper.make_model(graph, ir_version=10))}


def test_nodes_without_a_kernel_are_listed_and_allowed_only_where_the_cpu_has_one(
    snapshot: SnapshotAssertion,
) -> None:
    attention = clipped(TensorProto.FLOAT, "GroupQueryAttention")
    for allowed in (False, True):
        options = ExportOptions(allow_cpu_nodes=allowed)
        settings = resolve("encoder", device="cuda", precision="bf16", options=options)
        check_placement(clipped(TensorProto.FLOAT), settings)
        refused = partial(check_placement, clipped(BFLOAT16), settings)
        assert refusal(refused) == snapshot
        if allowed:
            check_placement(attention, settings)
        else:
            assert refusal(partial(check_placement, attention, settings)) == snapshot
