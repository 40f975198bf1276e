import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from packaging.version import Version
from tests.runtime import packed_bundles

from ortolan.errors import OrtolanError
from ortolan.runtime import Decoder, load
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.packed import BLOB, Packed, find_packed
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.ort_session import save_packed
from ortolan.runtime.engine.providers import onnxruntime_version
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.errors import BundleError, GraphError
from ortolan.runtime.pack import write as packing
from ortolan.runtime.pack.write import pack

KINDS = ("fp32", "split", "recurrent", "by-token", "int4", "int4-split")

IDS = list(range(40))

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


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.iterdir() if path.is_file()]
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


# --- results ----------------------------------------------------------------------------------


@pytest.mark.parametrize("bundle", KINDS, indirect=True)
def test_kernels_use_the_packed_weights_and_not_a_bit_of_the_logits_changes(bundle: Bundle) -> None:
    pack(bundle)
    weights = packed_of(bundle)
    expected = logits(bundle, weights)
    np.testing.assert_array_equal(expected, logits(bundle, None))
    with (bundle.path / weights.folder / BLOB).open("r+b") as stream:
        for graph in weights.manifest.graphs:
            for span in (span for weight in graph.weights for span in weight.spans):
                stream.seek(span.offset)
                stream.write(bytes(span.length))
    if CHECKS_PACKED:
        remedy = f"pre-packed weights .* delete the folder {weights.folder}"
        with pytest.raises(GraphError, match=remedy):
            logits(bundle, weights)
    else:
        assert not np.array_equal(logits(bundle, weights), expected), "kernels read other weights"


def test_a_model_with_packed_weights_generates_the_same_and_the_bundle_is_unchanged(
    bundle: Bundle, attached: list[str]
) -> None:
    before = contents(bundle.path)
    expected = load(bundle.path).generate([1, 2, 3], max_new_tokens=16)
    pack(bundle)
    attached.clear()
    model: Decoder = load(bundle.path, full_check=True)
    assert attached == ["decoder.onnx"]
    assert model.generate([1, 2, 3], max_new_tokens=16).tokens == expected.tokens
    assert contents(bundle.path) == before


@pytest.mark.parametrize("bundle", ["int4-split"], indirect=True)
def test_graphs_that_share_weights_share_packed_ones(bundle: Bundle) -> None:
    report = pack(bundle)
    weights = packed_of(bundle)
    one, other = weights.manifest.graphs
    assert {one.file, other.file} == {"prefill.onnx", "decode.onnx"}
    assert one.weights == other.weights
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
    assert graph.carrier.span.length == lengths[0]
    spans = [span for weight in graph.weights for span in weight.spans]
    ends = sorted((span.offset, span.offset + span.length) for span in [*spans, graph.carrier.span])
    assert all(one[1] <= next_[0] for one, next_ in pairwise(ends))
    assert manifest.blob.size == ends[-1][1]
    assert {path.name for path in folder.iterdir()} == {"packed.bin", "packed.json", "packed.seal"}


def test_packing_again_replaces_and_leaves_nothing_else(bundle: Bundle) -> None:
    first = Path(pack(bundle).folder)
    (first / "packed.json").write_bytes(b"{}")
    names = sorted(path.name for path in bundle.path.iterdir())
    assert Path(pack(bundle).folder) == first
    assert find(bundle) is not None
    assert sorted(path.name for path in bundle.path.iterdir()) == names


# --- errors -----------------------------------------------------------------------------------


class Killed(BaseException):
    pass


@pytest.mark.parametrize("where", ["save_packed", "_copy_carrier", "_compare"])
def test_an_interrupted_packing_leaves_nothing(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """tests/hostile/test_faults.py kills the process instead."""

    def stop(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(packing, where, stop)
        with pytest.raises(Killed):
            pack(bundle)
    assert find(bundle) is None
    assert not list(bundle.path.glob(".packing*"))
    load(bundle.path).generate([1], max_new_tokens=1)


def refused(bundle: Bundle, match: str) -> None:
    with pytest.raises(OrtolanError, match=match):
        pack(bundle)
    assert find(bundle) is None
    assert (bundle.path / ".packing.new").is_dir() is False


def test_another_packing_that_runs_is_an_error(bundle: Bundle) -> None:
    fcntl = pytest.importorskip("fcntl")
    lock = bundle.path / ".packing.lock"
    with lock.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BundleError, match="another process"):
            pack(bundle)
        assert lock.exists()
    pack(bundle)


def test_a_bundle_that_cannot_be_written_to_is_an_error(bundle: Bundle) -> None:
    (bundle.path / ".packing.new").write_text("in the way")
    refused(bundle, r"Not a directory[^.]*\.packing\.new'\)\.$")


def _no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


BROKEN: dict[str, tuple[str, object, str]] = {
    "full disk": ("_Blob.append", _no_space, "No space left on device. Free some .* packing needs"),
    "no file from onnxruntime": (
        "_SAVED",
        "missing/saved.bin",
        r"packed weights of decoder\.onnx \(\d+ bytes",
    ),
    "every weight replaced": ("_copy_packed", lambda *_: ((), {}), "replaces every weight"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_step_that_fails_is_an_error_and_leaves_nothing(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    target, replacement, words = BROKEN[name]
    monkeypatch.setattr(f"{packing.__name__}.{target}", replacement)
    refused(bundle, words)


def edit_saved(monkeypatch: pytest.MonkeyPatch, old: bytes, new: bytes) -> None:
    """Change the graph that onnxruntime saved before it is read."""
    save = save_packed

    def edited(*arguments: Any, **options: Any) -> Path:
        path = save(*arguments, **options)
        data = path.read_bytes()
        assert old in data
        assert len(old) == len(new)
        path.write_bytes(data.replace(old, new))
        return path

    monkeypatch.setattr(packing, "save_packed", edited)


OTHER_FORM = "Use the bundle without packed weights|schema 1"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"prepacked_", b"unpacked__", "packs none of these weights"),
        (b"MatMulNBits+", b"MatMulNBits/", OTHER_FORM),
        (b";0", b";;", OTHER_FORM),
        (b"prepacked_0", b"prepacked_\xff", OTHER_FORM),
    ],
)
def test_no_packed_weights_or_another_form_of_them_are_an_error(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, old: bytes, new: bytes, words: str
) -> None:
    edit_saved(monkeypatch, old, new)
    refused(bundle, words)


def test_a_saved_file_that_is_too_short_is_an_error(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = save_packed

    def cut(*arguments: Any, **options: Any) -> Path:
        path = save(*arguments, **options)
        os.truncate(path.parent / "saved.bin", 100)
        return path

    monkeypatch.setattr(packing, "save_packed", cut)
    refused(bundle, "bytes are missing")


def test_different_outputs_are_an_error(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    add: Callable[..., Any] = packing._Blob.add

    def swapped(self: packing._Blob, key: str, source: Any, spans: Any) -> Any:
        weight = add(self, key, source, spans)
        self._stream.seek(weight.spans[0].offset)
        self._stream.write(bytes(weight.spans[0].length))
        return weight

    monkeypatch.setattr(packing._Blob, "add", swapped)
    refused(bundle, "rejects the packed" if CHECKS_PACKED else "with packed weights differ")


def test_a_packed_bundle_can_be_copied(bundle: Bundle, tmp_path: Path) -> None:
    pack(bundle)
    copy = Path(shutil.copytree(bundle.path, tmp_path / "copy"))
    opened = open_bundle(copy, full_check=True)
    weights = packed_of(opened)
    np.testing.assert_array_equal(logits(opened, weights), logits(bundle, None))
