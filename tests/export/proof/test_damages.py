"""Single weights and attributes of a graph that differ from the export fail, however little."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from tests.export import tiny_models
from tests.runtime.damaged_bundles import damage, edit_json, put, reseal

import ortolan
from ortolan.export.options import ExportOptions, Int4, Int8
from ortolan.runtime import open_bundle
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.manifest import NAME
from ortolan.runtime.graph.summary import ExternalTensor
from ortolan.runtime.verification.certificate_files import JSON_NAME, read_certificate
from ortolan.runtime.verification.replay import verify
from ortolan.runtime.verification.weights import check_weights

GROUP = 32
"""Number of float32 values that change together."""

SUFFIXES = {
    ".codes": "group",
    ".channels": "group",
    ".scales": "scale",
    ".channel_scales": "scale",
    ".zeros": "zero point",
}


PRECISIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "fp32": ("fp32", {}),
    "fp16": ("fp16", {}),
    "int8": (Int8(), {}),
    "int4": (Int4(method="rtn", asymmetric=True), {}),
    "portable": (Int4(method="rtn"), {"attention": "portable"}),
    "split": (Int4(method="rtn"), {"graphs": "split", "prefill_precision": "int8"}),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bundle]:
    @cache
    def export(name: str) -> Bundle:
        precision, options = PRECISIONS[name]
        module = tiny_models.decoder(tiny_models.llama())
        given = ExportOptions(allow_poor=True, **options)
        out = tmp_path_factory.mktemp(name) / "bundle"
        bundle: Bundle = ortolan.export(module, out, precision=precision, options=given)
        return bundle

    return export


@pytest.mark.parametrize("name", PRECISIONS)
def test_every_kind_of_weight_is_proved_and_single_damages_are_found(
    name: str, exported: Callable[[str], Bundle]
) -> None:
    bundle = exported(name)
    expected = read_certificate(bundle).weights
    sound = check_weights(bundle, expected, threads=1)
    assert sound.wrong == ()
    assert 30 * sound.largest_error < sound.bound
    if name == "fp16":
        return  # damage to one value is below the rounding of such kernels
    random, tensors = np.random.default_rng(1), by_kind(bundle)
    files = {file: (bundle.path / file).read_bytes() for file in (NAME, *bundle.manifest.weights)}
    for _ in range(4):
        kind = str(random.choice(sorted(tensors)))
        sizes = np.array([tensor.length for tensor in tensors[kind]], float)
        tensor = tensors[kind][int(random.choice(len(sizes), p=sizes / sizes.sum()))]
        damage(bundle.path, tensor.name, change(kind, tensor, random))
        report = check_weights(open_bundle(bundle.path), expected, threads=1)
        (wrong,) = {each.rpartition(".")[0] for each in report.wrong}
        assert tensor.name.startswith(wrong), kind
        for file, data in files.items():
            (bundle.path / file).write_bytes(data)


def by_kind(bundle: Bundle) -> dict[str, list[ExternalTensor]]:
    """Tensors by the damage that they can have."""
    tensors: dict[str, list[ExternalTensor]] = {}
    external = {tensor.name: tensor for g in bundle.graphs.values() for tensor in g.external}
    for name, tensor in external.items():
        suffix = next((end for end in SUFFIXES if name.endswith(end)), None)
        if suffix is not None:
            tensors.setdefault(SUFFIXES[suffix], []).append(tensor)
        elif len(tensor.dims) == 1 and "norm" in name:
            tensors.setdefault("norm", []).append(tensor)
        elif len(tensor.dims) == 2 and not bundle.manifest.quantized:
            tensors.setdefault("group", []).append(tensor)
            tensors.setdefault("scale", []).append(tensor)
    return tensors


def change(
    kind: str, tensor: ExternalTensor, random: np.random.Generator
) -> Callable[[NDArray[Any]], None]:
    """One damage to some values of a tensor."""

    def apply(values: NDArray[Any]) -> None:
        flat, size = values.reshape(-1), 1
        if kind == "group" or (len(tensor.dims) == 2 and not tensor.name.endswith("scales")):
            size = tensor.dims[-1] if len(tensor.dims) == 3 else GROUP
        if kind == "zero point":
            size = 1
        start = int(random.integers(len(flat) // size)) * size
        part = slice(start, start + size)
        if kind == "zero point":
            flat[part] ^= 1 if random.random() < 0.5 else 16
        elif kind in ("scale", "norm"):
            flat[part] *= 1.05 if kind == "norm" else 1.1
        elif tensor.dtype == "float32":
            flat[part] = random.permutation(flat)[:size]
        else:
            flat[part] = random.integers(0, 256, size).astype(np.uint8).view(flat.dtype)

    return apply


# --- graphs ---------------------------------------------------------------------------------------

GRAPH = "decoder.onnx"

CHANGES: dict[str, Callable[[Any], object]] = {
    "scale": lambda attribute: setattr(attribute, "f", attribute.f * 1.01),
    "local_window_size": lambda attribute: setattr(attribute, "i", 250),
    "softcap": lambda attribute: setattr(attribute, "f", 500.0),
    "epsilon": lambda attribute: setattr(attribute, "f", attribute.f * 1.01),
}


@pytest.fixture(params=["fp32", "int4"])
def folder(
    request: pytest.FixtureRequest, exported: Callable[[str], Bundle], tmp_path: Path
) -> Path:
    """A bundle to change."""
    return shutil.copytree(exported(request.param).path, tmp_path / "bundle")


def change_graph(folder: Path, name: str) -> None:
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
def test_a_changed_attribute_fails_at_every_precision(folder: Path, name: str) -> None:
    assert verify(folder, exact=False, isolate=False).verdict == "PASS"
    change_graph(folder, name)
    report = verify(folder, exact=False, isolate=False)
    assert report.verdict == "FAIL"
    assert f"different from the export: {GRAPH}" in report.device_summary


def test_another_graph_under_another_name_fails(folder: Path) -> None:
    shutil.copy(folder / GRAPH, folder / "other.onnx")
    edit_json(folder, NAME, put("graphs", "decoder", "file", value="other.onnx"))
    report = verify(folder, exact=False, isolate=False)
    assert report.verdict == "FAIL"
    assert "different from the export: other.onnx" in report.device_summary


def test_a_certificate_that_names_no_graph_fails(folder: Path) -> None:
    edit_json(folder, JSON_NAME, lambda document: document["surroundings"]["files"].pop(GRAPH))
    report = verify(folder, exact=False, isolate=False)
    assert report.verdict == "FAIL"
    assert f"different from the export: {GRAPH}" in report.device_summary
