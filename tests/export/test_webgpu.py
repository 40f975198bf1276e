"""Bundles for WebGPU, on the CPU. `tests/gpu/test_webgpu.py` runs them on a GPU."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from tests.export import tiny_models

import ortolan
from ortolan.export.errors import OptionError
from ortolan.export.options import ExportOptions


@pytest.mark.parametrize("tied", [False, True])
def test_products_are_plain_and_compute_what_pytorch_does(tied: bool, tmp_path: Path) -> None:
    config = replace(tiny_models.llama(), tied_head=tied)
    module = tiny_models.decoder(config)
    options = ExportOptions(proof="quick")
    ortolan.export(module, tmp_path / "bundle", device="webgpu", options=options)
    model = ortolan.load(tmp_path / "bundle", device="cpu")
    assert model.manifest.devices == ("webgpu", "cpu")
    graph = onnx.load(tmp_path / "bundle" / "decoder.onnx", load_external_data=False).graph
    operators = {node.op_type for node in graph.node}
    assert "MatMul" in operators
    assert "FusedMatMul" not in operators
    ids = list(range(3, 20))
    with torch.no_grad():
        want = module(torch.tensor([ids]))[0].numpy()
    np.testing.assert_allclose(model.logits(ids), want, rtol=0, atol=1e-4 * np.abs(want).max())


def test_bfloat16_has_no_kernels(tmp_path: Path) -> None:
    module = tiny_models.decoder(tiny_models.llama(layers=1))
    with pytest.raises(OptionError, match="webgpu has no kernels for bf16"):
        ortolan.export(module, tmp_path / "bundle", device="webgpu", precision="bf16")
