"""Bundles from low-bit checkpoints, whose codes are copied."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner
from tests.modeling.checkpoint.gguf_cases import CASES
from tests.modeling.checkpoint.gguf_files import metadata_of, turned, write_gguf
from tests.modeling.checkpoint.packed_files import METHODS, WIDE, write_packed
from tests.modeling.tiny_models import reference_model
from torch import Tensor

from ortolan.cli import cli, main
from ortolan.export.advice import advise
from ortolan.export.options import ExportOptions, Int4, Int8, Via
from ortolan.export.pipeline import export
from ortolan.export.preview.preview import preview
from ortolan.export.quantize.stored import default_precision
from ortolan.export.settings import resolve
from ortolan.export.source import open_exportable
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.verification.certificate_files import read_certificate

pytestmark = pytest.mark.slow

QUICK = Int4(group_size=64, head_bits=8, calibration_sequences=1)
"""Calibrates the other weights on a little text that the model writes."""


def kept(bundle: Bundle) -> dict[str, tuple[int, int | None, bool]]:
    """Bits, group size and symmetry of the weights with codes of the checkpoint."""
    found = [weight for weight in bundle.manifest.quantized if weight.method == "kept"]
    # PyTorch computed with the same values.
    assert all(weight.error < 1e-6 for weight in found)
    return {weight.name: (weight.bits, weight.group, weight.symmetric) for weight in found}


@pytest.mark.parametrize(("name", "symmetric"), [("awq", False), ("compressed-4", True)])
def test_codes_of_packed_checkpoints_are_kept(name: str, symmetric: bool, tmp_path: Path) -> None:
    write_packed(tmp_path / "source", METHODS[name])
    bundle = export(tmp_path / "source", tmp_path / "bundle", precision=QUICK)
    found = kept(bundle)
    assert len(found) == 2 * 5  # qkv, out, gate, up, down
    assert set(found.values()) == {(4, 32, symmetric)}
    others = {w.name: w.method for w in bundle.manifest.quantized if w.name not in found}
    assert others == {"embedding.weight": "rtn", "head.weight": "gptq"}


@pytest.mark.parametrize(
    ("name", "precision", "number"),
    [
        ("gptq-8", QUICK, 0),  # more bits than asked for
        ("gptq-8", Int8(), 10),
        ("gptq-4", Int4(method="rtn", group_size=32, asymmetric=True), 0),  # another method
    ],
)
def test_codes_are_kept_where_they_are_asked_for(
    name: str, precision: Int4 | Int8, number: int, tmp_path: Path
) -> None:
    write_packed(tmp_path / "source", METHODS[name])
    options = ExportOptions(max_kl=9.0)  # 4-bit random weights are poor
    bundle = export(tmp_path / "source", tmp_path / "out", precision=precision, options=options)
    assert len(kept(bundle)) == number


KEPT_4, KEPT_8, ROUNDED = (4, "kept"), (8, "kept"), (8, "rtn")


def counts(bundle: Bundle) -> Counter[tuple[int, str]]:
    """Number of low-bit weights by bits and method."""
    return Counter((weight.bits, weight.method) for weight in bundle.manifest.quantized)


@pytest.mark.parametrize(
    ("name", "precision", "expected"),
    [
        ("gptq-4", "int4", {KEPT_4: 10, ROUNDED: 2}),
        ("awq", "int4", {KEPT_4: 10, ROUNDED: 2}),
        ("compressed-4", "int4", {KEPT_4: 10, ROUNDED: 2}),
        ("gptq-8", "int8", {KEPT_8: 10, ROUNDED: 2}),
        # Codes in groups of 16 have no kernel.
        ("gptq-dynamic", "int4", {KEPT_4: 4, ROUNDED: 8}),
        # Nothing to keep, so nothing is rounded.
        ("gptq-2", "fp32", {}),
        ("fp8-blocks", "fp32", {}),
        ("nf4", "fp32", {}),
    ],
)
@pytest.mark.parametrize("via", [None, "transformers"])
def test_a_packed_checkpoint_keeps_its_codes_and_gets_8_bits_elsewhere(
    via: Via | None,
    name: str,
    precision: str,
    expected: dict[tuple[int, str], int],
    tmp_path: Path,
) -> None:
    write_packed(tmp_path / "source", METHODS[name])
    options = ExportOptions(via=via)
    bundle = export(tmp_path / "source", tmp_path / "bundle", options=options)
    assert counts(bundle) == expected
    assert bundle.manifest.precision == precision
    assert bundle.manifest.provenance.calibrated_on is None
    measured = read_certificate(bundle).measured
    assert measured is not None
    assert measured.mean_kl is not None
    assert measured.mean_kl < 0.05


PRODUCTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def write_model(folder: Path, kinds: dict[str, str], *, turns: bool = False, **values: Any) -> Path:
    """A GGUF file with tensors of these types, of a llama unless `values` say otherwise."""
    model_type = values.get("model_type", "llama")
    arch, _, _, change_qwen2 = CASES[model_type]
    model = reference_model(WIDE | values)

    def change(name: str, tensor: Tensor) -> Tensor:
        if model_type == "qwen2":
            return change_qwen2(name, tensor)
        heads = {"attn_q": 4, "attn_k": 2}.get(name.split(".")[-2])
        return turned(tensor, heads) if turns and heads else tensor

    metadata = metadata_of(model) | ({"attention.key_length": 16} if turns else {})
    write_gguf(folder / "model.gguf", arch, model, metadata, change=change, kinds=kinds)
    return folder / "model.gguf"


def test_codes_of_a_gguf_file_are_copied_in_their_formats(tmp_path: Path) -> None:
    kinds = {f"blk.{i}.{part}.weight": "Q4_0" for i in (0, 1) for part in PRODUCTS}
    kinds |= {"token_embd.weight": "Q8_0", "output.weight": "Q8_0"}
    kinds |= {f"blk.{i}.ffn_down.weight": "Q4_1" for i in (0, 1)}
    file = write_model(tmp_path, kinds, turns=True)
    bundle = export(file, tmp_path / "bundle", precision=QUICK)
    copied = kept(bundle)
    assert copied.pop("embedding.weight") == copied.pop("head.weight") == (8, 32, True)
    assert len(copied) == len(bundle.manifest.quantized) - 2 == 2 * 5
    assert set(copied.values()) == {(4, 32, True)}
    assert bundle.manifest.provenance.calibrated_on is None
    measured = read_certificate(bundle).measured
    assert measured is not None
    assert measured.verdict == "PASS"


def test_minimums_of_groups_are_added_to_products(tmp_path: Path) -> None:
    kinds = {f"blk.{i}.{part}.weight": "Q4_1" for i in (0, 1) for part in PRODUCTS}
    # Look-ups have no minimums, so the embedding is rounded.
    kinds["token_embd.weight"] = "Q4_1"
    file = write_model(tmp_path, kinds, model_type="qwen2", tie_word_embeddings=True)
    options = ExportOptions(max_kl=9.0)
    bundle = export(file, tmp_path / "bundle", precision=QUICK, options=options)
    copied = kept(bundle)
    assert len(copied) == 2 * 5
    assert "embedding.weight" not in copied
    graph = onnx.load(tmp_path / "bundle/decoder.onnx", load_external_data=False).graph
    sums = [node for node in graph.node if node.op_type == "ReduceSum"]
    # Products that read the same inputs share their sums: qkv, out, gate and up, down.
    assert len(sums) == 2 * 4
    # Exact except for the head and activations of 8 bits.
    precision = replace(QUICK, exclude=["embedding.weight"])
    precise = export(file, tmp_path / "precise", precision=precision, options=options)
    measured = read_certificate(precise).measured
    assert measured is not None
    assert measured.mean_kl is not None
    assert measured.mean_kl < 0.02


def write_mixture(folder: Path, kinds: dict[str, str]) -> Path:
    """A GGUF file in which these kinds replace those of a mixture of 4 to 8 bits."""
    mixed = {f"blk.{i}.{part}.weight": "Q4_0" for i in (0, 1) for part in PRODUCTS}
    mixed |= {"blk.0.attn_v.weight": "Q5_0", "blk.1.ffn_down.weight": "Q8_0"}
    return write_model(folder, mixed | {"token_embd.weight": "Q8_0"} | kinds, turns=True)


def test_a_mixed_gguf_file_keeps_every_code_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = write_mixture(tmp_path, {"output.weight": "F16"}), tmp_path / "bundle"
    monkeypatch.setattr("sys.argv", ["ortolan", "export", str(file), str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    # Queries, keys and values of the first layer are one product, which has no common format.
    assert counts(open_bundle(out)) == {KEPT_4: 8, KEPT_8: 2, ROUNDED: 2}
    printed = capsys.readouterr().out
    assert ", int4)" in printed
    assert "8 in 4 bits by kept" in printed
    assert "2 in 8 bits by rtn" in printed
    precise = export(file, out, precision="fp32", force=True)
    assert (precise.manifest.precision, precise.manifest.quantized) == ("fp32", ())


@pytest.mark.parametrize(
    ("kind", "precision"), [("F16", "fp32"), ("BF16", "fp32"), ("Q8_0", "int8"), ("Q5_1", "fp32")]
)
def test_a_gguf_file_of_one_format_decides_the_precision(
    kind: str, precision: str, tmp_path: Path
) -> None:
    file = write_model(tmp_path, {f"blk.0.{part}.weight": kind for part in PRODUCTS})
    model = open_exportable(file)
    assert default_precision(model) == precision
    assert preview(file).default == precision


def test_an_inspection_names_the_default(tmp_path: Path) -> None:
    write_packed(tmp_path, METHODS["gptq-4"])
    done = CliRunner().invoke(cli, ["inspect", str(tmp_path)])
    (row,) = [line for line in done.output.splitlines() if "(default" in line]
    assert row.split()[0] == "int8"
    assert "keeps the 4-bit and 8-bit codes" in row


def test_kept_codes_are_no_risk_and_advice_does_not_round_them_again(tmp_path: Path) -> None:
    kinds = {f"blk.{i}.{part}.weight": "Q4_0" for i in (0, 1) for part in PRODUCTS}
    for name, values, are_risky in (
        ("kept", kinds, False),
        ("one more", kinds | {"blk.0.ffn_down.weight": "Q8_0"}, True),
        ("floats", {}, True),
    ):
        (tmp_path / name).mkdir()
        about = preview(write_model(tmp_path / name, values))
        assert bool(about.risks) == are_risky, name
    model = open_exportable(tmp_path / "kept/model.gguf")
    plan = resolve(model.kind, precision=default_precision(model))
    assert advise(model, plan) == ("--precision fp32",)


@pytest.mark.parametrize("precision", [None, QUICK])
def test_portable_graphs_have_no_minimums(precision: Int4 | None, tmp_path: Path) -> None:
    kinds = {"blk.0.ffn_down.weight": "Q4_1"}
    if precision is not None:
        kinds["blk.1.ffn_down.weight"] = "Q4_0"
    file = write_model(tmp_path, kinds, model_type="qwen2")
    options = ExportOptions(max_kl=None if precision is None else 9.0, attention="portable")
    bundle = export(file, tmp_path / "bundle", precision=precision, options=options)
    if precision is None:
        assert {bits for bits, _ in counts(bundle)} == {8}
        assert bundle.manifest.precision == "int8"
    else:
        assert kept(bundle).keys() == {"blocks.1.feed_forward.down.weight"}
