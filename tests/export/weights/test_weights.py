"""Weights as recipes make them and as files hold them."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from numpy.typing import NDArray
from tests.export import tiny_models
from tests.export.conftest import Exported
from tests.export.memory_weights import MemoryWeights
from tests.modeling.tiny_models import reference_model
from tests.tiny.decoders import GPT2
from torch import Tensor

import ortolan
from ortolan.export.derived import DerivedWeights, Recipe, derive, recipes_of
from ortolan.export.options import ExportOptions
from ortolan.export.passes.quantize_weights import CODES, TABLE
from ortolan.export.progress import Progress, silent
from ortolan.export.proof.weight_sums import WeightSums
from ortolan.export.quantize import rtn
from ortolan.export.quantize.rounding import Part, QuantizedWeight
from ortolan.export.scheme import Scheme
from ortolan.export.sizes import ALIGNMENT, initializer_sizes
from ortolan.export.values import add_initializer, static_shape
from ortolan.export.weights import blob as export_weights
from ortolan.export.weights.blob import Blob, BlobWriter, raw, write_rest
from ortolan.export.weights.codes import write_codes
from ortolan.modeling import lazy_tensor, load, read_config
from ortolan.modeling.checkpoint.folder import open_weights
from ortolan.modeling.weights import Weights


class Watched(Weights):
    """Records the largest read of weights in memory."""

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = tensors
        self.largest = 0

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        rows = self.tensors[name][start:stop]
        self.largest = max(self.largest, rows.numel())
        return rows


A, B, BIAS = torch.arange(12.0).reshape(3, 4), torch.arange(20.0).reshape(5, 4), torch.arange(3.0)

RECIPES = {
    "joined": (Recipe(("a", "b")), torch.cat([A, B])),
    "turned": (Recipe(("a",), transposed=True), A.T),
    "turned and joined": (Recipe(("a", "a"), transposed=True), torch.cat([A.T, A.T])),
    "one more": (Recipe(("bias",), offset=1.0), BIAS + 1),
    "vectors": (Recipe(("bias", "bias")), torch.cat([BIAS, BIAS])),
    "of another": (Recipe(("joined", "a")), torch.cat([A, B, A])),
}


@pytest.mark.parametrize("name", ["a", *RECIPES])
def test_any_rows_of_what_a_recipe_makes_are_those_of_the_whole(name: str) -> None:
    recipes = {key: recipe for key, (recipe, _) in RECIPES.items()}
    weights = DerivedWeights(MemoryWeights(a=A, b=B, bias=BIAS), recipes)
    whole = A if name == "a" else RECIPES[name][1]
    assert weights.shape(name) == whole.shape
    for start in range(len(whole)):
        for stop in range(start + 1, len(whole) + 1):
            assert torch.equal(weights.rows(name, start, stop), whole[start:stop])


def test_a_number_is_added_in_float32() -> None:
    small = torch.tensor([0.001], dtype=torch.bfloat16)
    weights = DerivedWeights(MemoryWeights(w=small), {"x": Recipe(("w",), offset=1.0)})
    assert torch.equal(weights.rows("x", 0, 1), small.float() + 1)


def test_axes_are_swapped_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_tensor, "READ_ELEMENTS", 8)
    source = Watched(w=torch.randn(50, 4))
    weights = DerivedWeights(source, {"x": Recipe(("w",), transposed=True)})
    assert torch.equal(weights.rows("x", 1, 3), source.tensors["w"].T[1:3])
    assert source.largest == 8


def graph_of(*names: str) -> ir.Graph:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 24})
    for rows, name in enumerate(names, start=2):
        add_initializer(graph, name, ir.DataType.FLOAT, (rows, 4))
    return graph


NAMES: dict[tuple[str, ...], str] = {
    ("layers.0.attn.q.weight", "layers.0.attn.k.weight"): "layers.0.attn.q+k.weight",
    ("layers.0.q", "layers.0.k"): "layers.0.q+k",
    ("a.b.weight", "c.weight"): "a.b+c.weight",
    ("x.q.weight", "x.q.extra.weight"): "x.q+q.extra.weight",
    ("p", "q"): "p+q",
}


@pytest.mark.parametrize("parts", NAMES)
def test_a_joined_weight_is_named_after_its_parts(parts: tuple[str, ...]) -> None:
    graph = graph_of(*parts)
    value = derive(graph, [graph.initializers[part] for part in parts])
    assert value.name == NAMES[parts]
    assert static_shape(value) == (5, 4)
    assert value.dtype == ir.DataType.FLOAT


def test_recipes_are_found_in_the_graph_and_read_the_same_shapes() -> None:
    graph = graph_of("a.weight", "b.weight")
    values = list(graph.initializers.values())
    turned = [derive(graph, [value], transposed=True) for value in values[:1]]
    joined = derive(graph, values)
    more = derive(graph, [joined], offset=1.0)
    del graph.initializers["a+b.weight"]  # which no node reads
    recipes = recipes_of([ir.Model(graph, ir_version=10)])
    assert recipes == {
        "a.T.weight": Recipe(("a.weight",), transposed=True),
        "a+b.weight": Recipe(("a.weight", "b.weight")),
        "a+b.plus_1.weight": Recipe(("a+b.weight",), offset=1.0),
    }
    source = MemoryWeights(**{"a.weight": torch.zeros(2, 4), "b.weight": torch.zeros(3, 4)})
    weights = DerivedWeights(source, recipes)
    for value in (*turned, joined, more):
        assert weights.shape(value.name or "") == static_shape(value)


Export = Callable[[str], Exported]
Shapes = Mapping[str, tuple[int, ...]]


def graph(shapes: Shapes, dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Model:
    """A graph of initializers without data, as after tracing."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 24}, name="weights")
    for name, shape in shapes.items():
        add_initializer(graph, name, dtype, shape)
    return ir.Model(graph, ir_version=10)


def write_blob(
    models: Sequence[ir.Model],
    weights: Weights,
    tables: Mapping[str, Tensor],
    folder: Path,
    *,
    dtype: torch.dtype,
    progress: Progress = silent,
) -> Blob:
    sizes, sums = initializer_sizes(models), WeightSums(models)
    with BlobWriter(folder, sizes=sizes, sums=sums, progress=progress) as writer:
        write_rest(writer, models, weights, tables, dtype=dtype)
        return writer.finish()


def write_tensors(
    folder: Path, tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.float32
) -> Blob:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return write_blob([graph(shapes)], MemoryWeights(**tensors), {}, folder, dtype=dtype)


def stored(folder: Path, blob: Blob, name: str, dtype: str = "f4") -> NDArray[np.generic]:
    number, offset, length = blob.placements[name]
    data = (folder / blob.files[number].name).read_bytes()[offset : offset + length]
    return np.frombuffer(data, dtype)


def ramp(*shape: int) -> Tensor:
    return torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape) / 7


def test_file_is_named_and_described_by_its_contents(tmp_path: Path) -> None:
    (file,) = write_tensors(tmp_path, {"a": ramp(3, 5)}).files
    data = (tmp_path / file.name).read_bytes()
    digest = sha256(data).hexdigest()
    assert file.name == f"weights-{digest[:16]}.bin"
    assert (file.size, file.sha256) == (len(data), digest)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_large_weights_are_in_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_weights, "FULL_BYTES", 3 * ALIGNMENT)
    monkeypatch.setattr(export_weights, "MOST_BYTES", 4 * ALIGNMENT)
    page = ALIGNMENT // 4
    sizes = {"a": page, "b": 2 * page, "c": page, "d": 3 * page, "e": 9 * page, "f": 1}
    tensors = {name: ramp(size) for name, size in sizes.items()}
    blob = write_tensors(tmp_path, tensors)
    assert [blob.placements[name][0] for name in sizes] == [0, 0, 1, 1, 2, 3]
    assert [file.size // ALIGNMENT for file in blob.files] == [3, 4, 9, 0]
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(stored(tmp_path, blob, name), tensor)


def test_a_bundle_of_several_weight_files_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, ids = tiny_models.decoder(tiny_models.llama(layers=1)), list(range(3, 20))
    whole = ortolan.export(module, tmp_path / "whole", options=ExportOptions(proof="quick"))
    monkeypatch.setattr(export_weights, "FULL_BYTES", 4 * ALIGNMENT)
    parts = ortolan.export(module, tmp_path / "parts", options=ExportOptions(proof="quick"))
    assert len(whole.manifest.weights) == 1 < len(parts.manifest.weights)
    got, want = (ortolan.load(bundle.path).logits(ids) for bundle in (parts, whole))
    np.testing.assert_array_equal(got, want)


def test_low_bit_weights_make_no_file_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme, rows = Scheme(bits=8, group=32), ramp(2, 32)
    part = Part(rows=rows, codes=rtn.quantize(rows, scheme))
    weight = QuantizedWeight(name="b", scheme=scheme, method="rtn", parts=iter([part]))
    monkeypatch.setattr(export_weights, "FULL_BYTES", 2 * ALIGNMENT)
    monkeypatch.setattr(export_weights, "MOST_BYTES", ALIGNMENT + 60)
    sizes = {"a": 4, f"b{TABLE}": 64, "c": 4}
    with BlobWriter(tmp_path, sizes=sizes, sums=WeightSums([])) as writer:
        writer.add("a", [raw(ramp(1))])
        write_codes(writer, [weight], dtype=torch.float32)
        blob = writer.finish()
    assert blob.placements["a"][0] == 0
    assert blob.placements[f"b{TABLE}"] == blob.placements[f"b{CODES}"] == (1, 0, 64)


def test_tensors_start_on_pages_with_zeros_between(tmp_path: Path) -> None:
    tensors = {"a": ramp(3, 5), "b": ramp(ALIGNMENT // 4), "c": ramp(2, 600), "d": ramp(1)}
    blob = write_tensors(tmp_path, tensors)
    assert list(blob.placements) == ["a", "b", "c", "d"]
    data = bytearray((tmp_path / blob.files[0].name).read_bytes())
    for name, (_, offset, length) in blob.placements.items():
        assert offset % ALIGNMENT == 0
        np.testing.assert_array_equal(stored(tmp_path, blob, name), tensors[name].flatten())
        data[offset : offset + length] = bytes(length)
    assert not any(data)
    assert blob.placements["c"][1] == 2 * ALIGNMENT


@pytest.mark.parametrize("chunk_bytes", [1, 20, 64, 1000])
def test_chunks_smaller_than_a_tensor_give_the_same_file(
    chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GPT-2 stores some weights transposed.
    folder = tmp_path / "checkpoint"
    reference_model(GPT2).save_pretrained(folder)
    module = load(folder)
    weights = open_weights(folder, read_config(folder))
    model = graph({name: tuple(p.shape) for name, p in module.named_parameters()})
    whole = write_blob([model], weights, {}, tmp_path, dtype=torch.float16)
    monkeypatch.setattr(export_weights, "CHUNK_BYTES", chunk_bytes)
    chunked = write_blob([model], weights, {}, tmp_path, dtype=torch.float16)
    assert chunked == whole
    np.testing.assert_array_equal(
        stored(tmp_path, chunked, "blocks.1.attention.qkv.weight", "f2"),
        module.blocks[1].get_parameter("attention.qkv.weight").detach().half().flatten(),
    )


def test_rows_are_read_in_chunks_and_progress_counts_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[tuple[str, int, int, str]] = []
    monkeypatch.setattr(export_weights, "CHUNK_BYTES", 100)
    source = Watched(a=ramp(7, 10), b=ramp(3))
    write_blob(
        [graph({"a": (7, 10), "b": (3,)})],
        source,
        {},
        tmp_path,
        dtype=torch.float32,
        progress=lambda *count: counts.append(count),
    )
    assert source.largest == 2 * 10
    assert counts == [
        *(("weights", done, 292, "a") for done in (80, 160, 240, 280)),
        ("weights", 292, 292, "b"),
    ]


def test_tied_head_is_stored_once_and_read_by_both_ends(exported: Export) -> None:
    bundle = exported("gpt2-portable").bundle
    tables = [t.name for t in bundle.graphs["decoder"].external if t.dims == (97, 64)]
    assert tables == ["embedding.weight"]


def test_graphs_of_a_split_bundle_share_every_weight(exported: Export) -> None:
    graphs = exported("llama-split-portable").bundle.graphs
    assert set(graphs["prefill"].external) == set(graphs["decode"].external)


def test_tables_are_written_and_rows_that_no_graph_has_are_not(tmp_path: Path) -> None:
    table, weights = ramp(5, 2), MemoryWeights(a=ramp(10, 4))
    models = [graph({"t": (5, 2), "a": (3, 4)}), graph({"a": (3, 4)})]
    blob = write_blob(models, weights, {"t": table}, tmp_path, dtype=torch.float32)
    assert blob.files[0].size == ALIGNMENT + 48  # each is stored once
    np.testing.assert_array_equal(stored(tmp_path, blob, "t"), table.flatten())
    np.testing.assert_array_equal(stored(tmp_path, blob, "a"), ramp(10, 4)[:3].flatten())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_weights_of_any_float_type_become_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    weight = ramp(3, 5).to(dtype)
    blob = write_tensors(tmp_path, {"a": weight})
    np.testing.assert_array_equal(stored(tmp_path, blob, "a"), weight.float().flatten())
