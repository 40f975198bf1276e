"""A graph that computes something else than the exported one fails, however little differs."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.export import tiny_models
from tests.runtime.damaged_bundles import edit_json, put, reseal

import ortolan
from ortolan.export.options import ExportOptions, Int4
from ortolan.runtime.bundle.manifest import NAME
from ortolan.runtime.verification.certificate_files import JSON_NAME
from ortolan.runtime.verification.replay import verify

GRAPH = "decoder.onnx"

CHANGES: dict[str, Callable[[Any], object]] = {
    "scale": lambda attribute: setattr(attribute, "f", attribute.f * 1.01),
    "local_window_size": lambda attribute: setattr(attribute, "i", 250),
    "softcap": lambda attribute: setattr(attribute, "f", 500.0),
    "epsilon": lambda attribute: setattr(attribute, "f", attribute.f * 1.01),
}


@pytest.fixture(scope="module", params=["fp32", "int4"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("changed") / "bundle"
    precision = Int4(method="rtn") if request.param == "int4" else request.param
    module = tiny_models.decoder(tiny_models.llama())
    ortolan.export(module, folder, precision=precision, options=ExportOptions(allow_poor=True))
    return folder


def change(folder: Path, name: str) -> None:
    """Change an attribute of the first node that may have it."""
    model = onnx.load_from_string((folder / GRAPH).read_bytes())
    operator = "GroupQueryAttention" if name != "epsilon" else "RMSNormalization"
    node = next(node for node in model.graph.node if operator in node.op_type)
    attribute = next((a for a in node.attribute if a.name == name), None)
    if attribute is None:
        kind = onnx.AttributeProto.INT if "window" in name else onnx.AttributeProto.FLOAT
        attribute = node.attribute.add(name=name, type=kind)
    CHANGES[name](attribute)
    (folder / GRAPH).write_bytes(model.SerializeToString())
    reseal(folder)


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_attribute_fails_at_every_precision(
    bundle: Path, tmp_path: Path, name: str
) -> None:
    folder = shutil.copytree(bundle, tmp_path / "bundle")
    assert verify(folder, exact=False, isolate=False).verdict == "PASS"
    change(folder, name)
    report = verify(folder, exact=False, isolate=False)
    assert report.verdict == "FAIL"
    assert f"different from the export: {GRAPH}" in report.device_summary


def test_another_graph_under_another_name_fails(bundle: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bundle, tmp_path / "bundle")
    shutil.copy(folder / GRAPH, folder / "other.onnx")
    edit_json(folder, NAME, put("graphs", "decoder", "file", value="other.onnx"))
    report = verify(folder, exact=False, isolate=False)
    assert report.verdict == "FAIL"
    assert "different from the export: other.onnx" in report.device_summary


def test_a_certificate_of_an_older_export_names_no_graph_and_passes(
    bundle: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(bundle, tmp_path / "bundle")
    edit_json(folder, JSON_NAME, lambda document: document["surroundings"]["files"].pop(GRAPH))
    report = verify(folder, exact=False, isolate=False)
    assert report.verdict == "PASS"
    assert report.surroundings is not None
    assert "not compared: graphs" in report.surroundings.summary
