"""Bundles for WebGPU, on the CPU. `tests/gpu/test_webgpu.py` runs them on a GPU."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
import torch
from numpy.typing import NDArray
from syrupy.assertion import SnapshotAssertion
from tests.export import tiny_models
from tests.gpu import webgpu_models as models
from tests.modeling.tiny_models import reference_model
from tests.refusals import refusal
from tests.tiny import FAMILY_CONFIGS
from tests.tiny.numbers import assert_close

import ortolan
from ortolan.export.options import ExportOptions, Int4, Int8

pytestmark = pytest.mark.slow

QUICK = ExportOptions(proof="quick", allow_poor=True)

WITHOUT_KERNEL = {"Attention", "FusedMatMul", "TensorScatter"}


def operators(graph: Path) -> set[str]:
    return {node.op_type for node in onnx.load(graph, load_external_data=False).graph.node}


def exported(module: Any, out: Path, *, without: set[str] = WITHOUT_KERNEL) -> Any:
    """A bundle for WebGPU on the CPU; its graphs have none of these operators."""
    bundle = ortolan.export(module, out, device="webgpu", options=QUICK)
    for graph in bundle.manifest.graphs.values():
        assert operators(bundle.file(graph.file)).isdisjoint(without)
    return ortolan.load(out, device="cpu")


def logits_of(module: Any, *inputs: list[int]) -> NDArray[np.float32]:
    with torch.no_grad():
        out: NDArray[np.float32] = module(*(torch.tensor([ids]) for ids in inputs))[0].numpy()
    return out


@pytest.mark.parametrize("tied", [False, True])
def test_products_are_plain_and_compute_what_pytorch_does(tied: bool, tmp_path: Path) -> None:
    module = tiny_models.decoder(replace(tiny_models.llama(), tied_head=tied))
    model = exported(module, tmp_path / "bundle")
    assert model.manifest.devices == ("webgpu", "cpu")
    graph = onnx.load(tmp_path / "bundle" / "decoder.onnx", load_external_data=False).graph
    read = {name for node in graph.node for name in node.input}
    assert {tensor.name for tensor in graph.initializer} <= read
    ids = list(range(3, 20))
    assert_close(model.logits(ids), logits_of(module, ids))


@pytest.mark.parametrize("name", ["softcap", "latent"])
def test_attention_of_a_decoder_is_plain_and_computes_what_pytorch_does(
    name: str, tmp_path: Path
) -> None:
    module = models.SOURCES[name]()
    model, ids = exported(module, tmp_path / "bundle"), list(range(3, 40))
    want = logits_of(module, ids)
    assert_close(model.logits(ids), want)
    with model.session() as session:
        got = [session.append(ids[:11]), *(session.append([token]) for token in ids[11:])]
    assert_close(np.stack(got), want[10:])
    prompts = [ids[:5], ids[:20]]
    together = model.generate(prompts, max_new_tokens=8, ignore_eos=True)
    alone = [model.generate(prompt, max_new_tokens=8, ignore_eos=True) for prompt in prompts]
    assert [done.tokens for done in together] == [done.tokens for done in alone]


def test_rows_of_a_first_call_may_be_padded(tmp_path: Path) -> None:
    module = models.SOURCES["softcap"]()
    bundle = ortolan.export(module, tmp_path / "bundle", device="webgpu", options=QUICK)
    texts = [list(range(3, 8)), list(range(20, 29))]
    ids = np.array([text + [0] * (9 - len(text)) for text in texts], np.int64)
    feeds = {
        "input_ids": ids,
        "seqlens_k": np.array([4, 8], np.int32),
        "total_sequence_length": np.array(9, np.int32),
        "logit_positions": np.array([[4], [8]], np.int64),
    }
    for state in bundle.manifest.states:
        sizes = [{"batch": 2, "capacity": 16}.get(str(n), n) for n in state.shape]
        feeds[state.input] = np.zeros([int(n) for n in sizes], np.float32)
    session = onnxruntime.InferenceSession(bundle.path / "decoder.onnx")
    got = session.run(["logits"], feeds)[0][:, 0]
    for text, row in zip(texts, got, strict=True):
        assert_close(row, logits_of(module, text)[-1])


@pytest.mark.parametrize("name", models.ENCODERS)
def test_attention_of_an_encoder_is_plain_and_computes_what_pytorch_does(
    name: str, tmp_path: Path
) -> None:
    module = models.SOURCES[name]()
    model = exported(module, tmp_path / "bundle")
    texts = [list(range(3, 30)), [7], list(range(5, 14))]
    for ids, got in zip(texts, model.states(texts), strict=True):
        with torch.no_grad():
            want = module(torch.tensor([ids]), torch.tensor([len(ids)]))[0].numpy()
        assert_close(got, want)


@pytest.mark.parametrize("cell", ["lstm", "rnn", "gru"])
def test_a_recurrent_network_reads_token_by_token(cell: str, tmp_path: Path) -> None:
    module, ids = models.recurrent(cell=cell), list(range(3, 20))
    model = exported(module, tmp_path / "bundle", without={"RNN", "GRU", "LSTM"})
    assert model.manifest.takes_one
    assert_close(model.logits(ids), logits_of(module, ids))


@pytest.mark.parametrize("precision", [Int8(), Int4(method="rtn", asymmetric=True)])
def test_weights_for_the_web_are_dequantized_once_at_loading(
    precision: Int8 | Int4, tmp_path: Path
) -> None:
    module = tiny_models.decoder(tiny_models.llama())
    bundles = [
        ortolan.export(module, tmp_path / device, device=device, precision=precision, options=QUICK)
        for device in ("web", "cpu")
    ]
    assert bundles[0].manifest.devices == ("webgpu", "cpu")
    assert operators(bundles[0].path / "decoder.onnx").isdisjoint({*WITHOUT_KERNEL, "MatMulNBits"})
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.optimized_model_filepath = str(tmp_path / "web" / "loaded.onnx")
    onnxruntime.InferenceSession(tmp_path / "web" / "decoder.onnx", options)
    loaded = operators(tmp_path / "web" / "loaded.onnx")
    assert loaded.isdisjoint({"DequantizeLinear", "MatMulNBits"})
    assert "GatherBlockQuantized" in loaded
    ids = list(range(3, 20))
    got, want = (ortolan.load(bundle.path, device="cpu").logits(ids) for bundle in bundles)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-2 * np.abs(want).max())


def mixture(folder: Path) -> Path:
    reference_model(FAMILY_CONFIGS["mixtral"]).save_pretrained(folder)
    return folder


def with_maps(_: Path) -> Any:
    return models.recurrent(cell="lstm", attention_size=8)


REFUSED: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "experts": (mixture, {}),
    "attention maps": (with_maps, {"options": replace(QUICK, attention_maps=True)}),
    "bfloat16": (lambda _: tiny_models.decoder(tiny_models.llama()), {"precision": "bf16"}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_kernels_is_refused(
    name: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    write, options = REFUSED[name]
    source, out = write(tmp_path / "source"), tmp_path / "bundle"
    text = refusal(lambda: ortolan.export(source, out, device="webgpu", **options), tmp_path)
    assert text == snapshot
    assert not out.exists()
