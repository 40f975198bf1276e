"""Bundles of mixtures of experts."""

from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch
from tests.cases.modules import mixture
from tests.modeling.mxfp4_files import save_gpt_oss
from torch import nn

import ortolan
from ortolan.export.errors import OptionError
from ortolan.export.inputs.tensors import Inputs
from ortolan.export.low_bit import Quantization
from ortolan.export.options import ExportOptions, GroupSize, Int4
from ortolan.export.quantize import rounding, rtn
from ortolan.export.quantize.calibrate import calibrated_weights
from ortolan.export.quantize.rounding import row_chunks
from ortolan.export.quantize.schemes import assign_schemes
from ortolan.export.scheme import Scheme
from ortolan.export.source import open_exportable
from ortolan.modeling import DecoderModel
from ortolan.modeling.weights import module_weights
from ortolan.runtime import Bundle

EXPERTS = [f"blocks.0.feed_forward.experts.{name}" for name in ("gate_up", "down")]


@pytest.fixture(scope="module")
def model() -> DecoderModel:
    return mixture()


def operators(bundle: Bundle, role: str) -> list[str]:
    file = bundle.file(bundle.manifest.graphs[role].file)
    return [node.op_type for node in onnx.load(str(file), load_external_data=False).graph.node]


@pytest.mark.slow
def test_experts_are_stored_in_few_bits_and_routers_are_not(
    model: DecoderModel, tmp_path: Path
) -> None:
    options = ExportOptions(graphs="split", prefill_precision="int8", max_kl=0.01)
    bundle = ortolan.export(
        model, tmp_path / "bundle", precision=Int4(method="rtn"), options=options
    )
    # Experts have no form as products of integers.
    for role in bundle.manifest.graphs:
        assert "QMoE" in operators(bundle, role)
        assert "MoE" not in operators(bundle, role)
    stored = {tensor.name: tensor for tensor in bundle.manifest.quantized}
    assert [stored[name].bits for name in EXPERTS] == [4, 4]
    assert {stored[name].method for name in EXPERTS} == {"rtn"}
    assert all(0.01 < stored[name].error < 0.1 for name in EXPERTS)
    assert not any("router" in name or "shared_gate" in name for name in stored)


def test_portable_graphs_of_experts_are_refused(model: DecoderModel, tmp_path: Path) -> None:
    options = ExportOptions(attention="portable")
    with pytest.raises(OptionError, match="mixture of experts"):
        ortolan.export(model, tmp_path / "bundle", options=options)
    assert not (tmp_path / "bundle").exists()


def test_experts_are_rounded_where_products_are_calibrated(model: DecoderModel) -> None:
    source = open_exportable(model)
    scheme = Scheme(bits=4, group=32)
    names = [*EXPERTS, "blocks.0.attention.qkv.weight", "blocks.0.feed_forward.shared.up.weight"]
    inputs = Inputs(ids=[torch.arange(start, start + 40) for start in (0, 15, 30)])
    found = {}
    for weight in calibrated_weights(source, dict.fromkeys(names, (scheme,)), inputs):
        found[weight.name] = weight.method
        for part in weight.parts:
            if weight.name in EXPERTS:  # no input says which of their columns matter more
                equal = torch.ones(part.rows.shape[1])
                expected = rtn.quantize(part.rows, scheme, importance=equal)
                assert torch.equal(part.codes.scales, expected.scales)
    assert found == dict.fromkeys(names[2:], "gptq") | dict.fromkeys(EXPERTS, "rtn")


@pytest.mark.slow
def test_experts_of_mxfp4_are_exact_in_eight_bits(tmp_path: Path) -> None:
    save_gpt_oss(tmp_path / "source")
    bundle = ortolan.export(
        tmp_path / "source",
        tmp_path / "bundle",
        options=ExportOptions(max_kl=10.0),
    )
    stored = {tensor.name: tensor for tensor in bundle.manifest.quantized}
    for name in EXPERTS:
        tensor = stored[name]
        assert (tensor.bits, tensor.group, tensor.method) == (8, 32, "kept")
        assert tensor.error == 0


def graph(width: int = 96, size: int = 64) -> ir.Model:
    """A router and experts of these sizes."""
    model = ir.from_onnx_text(f"""
        <ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]>
        g (float[T, {width}] x) => (float[T, {width}] y) {{
            r = com.microsoft.FusedMatMul <transB = 1> (x, router)
            y = com.microsoft.MoE <k = 2> (x, r, first, , second)
        }}
    """)
    values = {value.name: value for node in model.graph for value in node.inputs if value}
    for name, full, shape in (
        ("router", "blocks.0.feed_forward.router.weight", (4, width)),
        ("first", EXPERTS[0], (4, 2 * size, width)),
        ("second", EXPERTS[1], (4, width, size)),
    ):
        value = values[name]
        value.name, value.shape = full, ir.Shape(shape)
        model.graph.initializers.add(value)
    return model


def quantization(group: GroupSize = 128, *, shrink: bool = True, **fields: Any) -> Quantization:
    scheme = Scheme(bits=4, group=group)
    return Quantization(scheme=scheme, head=scheme, method="rtn", shrink_groups=shrink, **fields)


def test_both_weights_of_experts_have_the_largest_groups_that_divide_them() -> None:
    planned = assign_schemes([graph()], quantization())
    assert {name: scheme.group for name, scheme in planned.items()} == dict.fromkeys(EXPERTS, 32)
    assert {s.group for s in assign_schemes([graph(256, 512)], quantization()).values()} == {128}


@pytest.mark.parametrize("name", EXPERTS)
def test_where_one_weight_of_experts_is_excluded_both_are(name: str) -> None:
    assert assign_schemes([graph()], quantization(exclude=(name,))) == {}


@pytest.mark.parametrize(
    ("sizes", "options"), [((40, 64), quantization()), ((96, 64), quantization(128, shrink=False))]
)
def test_rows_of_experts_that_no_groups_divide_are_refused(
    sizes: tuple[int, int], options: Quantization
) -> None:
    with pytest.raises(OptionError, match=r"experts\.gate_up: .* --exclude"):
        assign_schemes([graph(*sizes)], options)


def test_no_chunk_of_rows_is_of_two_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Module()
    module.experts = nn.Parameter(torch.randn(3, 5, 4))
    monkeypatch.setattr(rounding, "CHUNK_ELEMENTS", 3 * 4)
    chunks = list(row_chunks(module_weights(module), "experts"))
    assert [len(chunk) for chunk in chunks] == [3, 2] * 3
    assert torch.equal(torch.cat(chunks), module.experts.detach().flatten(0, 1))
