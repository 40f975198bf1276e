import os
import re
import shutil
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from packaging.version import Version
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime import packed_bundles

from ortolan.runtime import Decoder, load
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.packed import BLOB, Packed, PackedGraph, find_packed
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.ort_session import save_packed
from ortolan.runtime.engine.providers import onnxruntime_version
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.errors import GraphError
from ortolan.runtime.pack import write as packing
from ortolan.runtime.pack.write import pack

KINDS = ("fp32", "split", "recurrent", "by-token", "int4", "int4-split")

IDS = list(range(40))

COUNTS = count()

CHECKS_PACKED = Version(onnxruntime_version()) >= Version("1.32")
"""Whether onnxruntime rejects packed weights that differ from those it computes."""


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here waits for a disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("packing")
    return {kind: packed_bundles.write(folder / kind, kind).path for kind in KINDS}


@pytest.fixture
def bundle(bundles: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest) -> Bundle:
    """A copy that a test may change; int4 unless the test is parametrized."""
    kind = getattr(request, "param", "int4")
    return open_bundle(shutil.copytree(bundles[kind], tmp_path / "bundle"))


def find(bundle: Bundle) -> Packed | None:
    return find_packed(bundle, onnxruntime=onnxruntime_version())


def packed_of(bundle: Bundle) -> Packed:
    weights = find(bundle)
    assert weights is not None
    return weights


def logits(bundle: Bundle, weights: Packed | None) -> NDArray[np.float32]:
    """Logits of a prompt, and of tokens decoded after it."""
    engine = Engine(bundle, packed=weights)
    runner = Runner(engine, engine.slots())
    rows = [runner.chunk(0, IDS, positions=range(len(IDS)))]
    rows += [runner.chunk(0, [token], positions=[0]) for token in IDS[:4]]
    return np.concatenate(rows)


def spans_of(graph: PackedGraph) -> list[tuple[int, int]]:
    """Offsets and lengths of the packed weights of a graph."""
    blobs = (blob for value in graph.entries.values() for blob in value.split("|")[1:])
    return [(int(offset), int(length)) for offset, length, _ in (b.split(";") for b in blobs)]


# --- results ----------------------------------------------------------------------------------


@pytest.mark.parametrize("bundle", KINDS, indirect=True)
def test_kernels_use_the_packed_weights_and_not_a_bit_of_the_logits_changes(bundle: Bundle) -> None:
    pack(bundle)
    weights = packed_of(bundle)
    expected = logits(bundle, weights)
    np.testing.assert_array_equal(expected, logits(bundle, None))
    with (bundle.path / weights.folder / BLOB).open("r+b") as stream:
        for graph in weights.manifest.graphs:
            for offset, length in spans_of(graph):
                stream.seek(offset)
                stream.write(bytes(length))
    if CHECKS_PACKED:
        remedy = f"pre-packed weights .* delete the folder {weights.folder}"
        with pytest.raises(GraphError, match=remedy):
            logits(bundle, weights)
    else:
        assert not np.array_equal(logits(bundle, weights), expected), "kernels read other weights"


def test_a_model_with_packed_weights_generates_the_same_and_the_bundle_is_unchanged(
    bundle: Bundle, attached: list[str]
) -> None:
    expected = load(bundle.path).generate([1, 2, 3], max_new_tokens=16)
    pack(bundle)
    attached.clear()
    model: Decoder = load(bundle.path, full_check=True)
    assert attached == ["decoder.onnx"]
    assert model.generate([1, 2, 3], max_new_tokens=16).tokens == expected.tokens
    open_bundle(bundle.path, full_check=True)


@pytest.mark.parametrize("bundle", ["int4-split"], indirect=True)
def test_graphs_that_share_weights_share_packed_ones(bundle: Bundle) -> None:
    report = pack(bundle)
    one, other = packed_of(bundle).manifest.graphs
    assert {one.file, other.file} == {"prefill.onnx", "decode.onnx"}
    assert one.keys == other.keys
    assert sorted(spans_of(one)) == sorted(spans_of(other))
    assert report.weights == 9  # four products in each of two layers, and the head


def test_packed_weights_and_a_small_one_are_all_there_is(bundle: Bundle) -> None:
    report = pack(bundle)
    folder = Path(report.folder)
    weights = bundle.file(bundle.manifest.weights[0]).stat().st_size
    assert folder.parent == bundle.path
    assert report.bytes == sum(512 * path.stat().st_blocks for path in folder.iterdir())
    assert report.share == report.bytes / weights
    assert min(report.load_before_s, report.load_after_s) > 0
    manifest = packed_of(bundle).manifest
    (graph,) = manifest.graphs
    lengths = sorted(tensor.length for tensor in bundle.graphs["decoder"].external)
    carrier = int(graph.entries["offset"]), int(graph.entries["length"])
    assert carrier[1] == lengths[0]
    ends = sorted((start, start + length) for start, length in [*spans_of(graph), carrier])
    assert all(one[1] <= next_[0] for one, next_ in pairwise(ends))
    assert manifest.blob.size == ends[-1][1]
    assert {path.name for path in folder.iterdir()} == {"packed.bin", "packed.json", "packed.seal"}


def test_packing_again_replaces_and_a_copy_is_packed(bundle: Bundle, tmp_path: Path) -> None:
    first = Path(pack(bundle).folder)
    (first / "packed.json").write_bytes(b"{}")
    names = sorted(path.name for path in bundle.path.iterdir())
    assert Path(pack(bundle).folder) == first
    assert sorted(path.name for path in bundle.path.iterdir()) == names
    copy = open_bundle(shutil.copytree(bundle.path, tmp_path / "copy"), full_check=True)
    np.testing.assert_array_equal(logits(copy, packed_of(copy)), logits(bundle, None))


# --- errors; tests/hostile interrupts packing, packs twice at once and fills the disk ----------


def refused(bundle: Bundle) -> str:
    """The error of a packing, which leaves nothing."""
    text = refusal(lambda: pack(bundle), bundle.path, onnxruntime_version())
    assert find(bundle) is None
    assert not (bundle.path / ".packing.new").is_dir()
    return re.sub(r"\d{2,}", "N", text)


def test_a_bundle_that_cannot_be_written_to_is_an_error(
    bundle: Bundle, snapshot: SnapshotAssertion
) -> None:
    (bundle.path / ".packing.new").write_text("in the way")
    assert refused(bundle) == snapshot


def replaced(old: bytes, new: bytes) -> Callable[[Path], None]:
    def change(graph: Path) -> None:
        data = graph.read_bytes()
        assert old in data
        graph.write_bytes(data.replace(old, new))

    return change


SAVED: dict[str, Callable[[Path], object]] = {
    "nothing packed": replaced(b"prepacked_", b"unpacked__"),
    "another separator": replaced(b";0", b";;"),
    "no text": replaced(b"prepacked_0", b"prepacked_\xff"),
    "a short file": lambda graph: os.truncate(graph.parent / "saved.bin", 100),
}


@pytest.mark.parametrize("name", SAVED)
def test_what_onnxruntime_saves_in_another_form_is_an_error(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, name: str, snapshot: SnapshotAssertion
) -> None:
    def changed(*arguments: Any, **options: Any) -> Path:
        graph = save_packed(*arguments, **options)
        SAVED[name](graph)
        return graph

    monkeypatch.setattr(packing, "save_packed", changed)
    assert refused(bundle) == snapshot


@pytest.mark.parametrize(
    ("target", "replacement", "words"),
    [
        ("_SAVED", "missing/saved.bin", "cannot write the packed weights of decoder.onnx"),
        ("_copy_packed", lambda *_: ((), {}), "onnxruntime replaces every weight"),
        ("sample_outputs", lambda _: [np.array(next(COUNTS))], "packed weights differ"),
    ],
)
def test_a_step_that_fails_is_an_error(
    bundle: Bundle,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    replacement: object,
    words: str,
) -> None:
    monkeypatch.setattr(packing, target, replacement)
    assert words in refused(bundle)
