import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import onnx
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.runtime import packed_bundles

from ortolan.runtime import BundleFileError, GraphError, load, verify
from ortolan.runtime.bundle import packed, seal
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.manifest_file import encode
from ortolan.runtime.bundle.packed import (
    BLOB,
    NAME,
    SEAL,
    PackedManifest,
    find_packed,
    folder_name,
)
from ortolan.runtime.engine.providers import onnxruntime_version
from ortolan.runtime.graph import rules as onnx_graph
from ortolan.runtime.machine.processor import processor_features
from ortolan.runtime.pack.write import pack

VERSION = onnxruntime_version()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bundle = packed_bundles.write(tmp_path_factory.mktemp("packed") / "bundle", "int4")
    pack(bundle)
    return bundle.path


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Bundle:
    """A packed bundle that a test may damage."""
    return open_bundle(shutil.copytree(original, tmp_path / "bundle"))


@pytest.fixture
def folder(bundle: Bundle) -> Path:
    return bundle.path / folder_name(VERSION)


def reseal(folder: Path, change: Callable[[PackedManifest], PackedManifest]) -> None:
    """Change a packed manifest and seal it again."""
    manifest = change(msgspec.json.decode((folder / NAME).read_bytes(), type=PackedManifest))
    replace_manifest(folder, packed.encode(manifest))


def replace_manifest(folder: Path, data: bytes) -> None:
    (folder / NAME).write_bytes(data)
    (folder / SEAL).write_bytes(seal.make_seal(data))


# --- usable folders -----------------------------------------------------------------------------


def test_what_was_packed_here_is_used_without_a_warning(
    bundle: Bundle, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = find_packed(bundle, onnxruntime=VERSION, full_check=True)
    assert weights is not None
    assert weights.folder == folder.name
    load(bundle.path, full_check=True)
    shutil.copytree(folder, bundle.path / ("packed-" + "0" * 16))
    other = partial(msgspec.structs.replace, onnxruntime="1.0")
    reseal(bundle.path / ("packed-" + "0" * 16), other)
    assert find_packed(bundle, onnxruntime=VERSION) is not None
    assert caplog.records == []


def test_only_folders_with_the_right_name_are_looked_at(
    bundle: Bundle, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (".packing", "packed-", "packed-\x1b[31m", "packed-0123456789ABCDEF"):
        shutil.copytree(folder, bundle.path / name)
    (bundle.path / ("packed-" + "0" * 16)).write_text("a file")
    elsewhere = shutil.copytree(folder, tmp_path / "elsewhere")
    (bundle.path / ("packed-" + "1" * 16)).symlink_to(elsewhere)
    shutil.rmtree(folder)
    assert find_packed(bundle, onnxruntime=VERSION) is None
    assert caplog.records == []


def test_the_name_of_the_folder_follows_version_and_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {folder_name("1.31.1"), folder_name("1.31.2")}
    monkeypatch.setattr(packed, "processor_features", lambda: ("x86_64", "avx"))
    names |= {folder_name("1.31.1"), folder_name("1.31.2")}
    assert len(names) == 4


def test_a_graph_refers_to_packed_weights_and_is_otherwise_unchanged(bundle: Bundle) -> None:
    weights = find_packed(bundle, onnxruntime=VERSION)
    assert weights is not None
    data = bundle.read("decoder.onnx")
    own = onnx.load_from_string(data)
    attached = onnx.load_from_string(weights.attach("decoder.onnx", data))
    (graph,) = weights.manifest.graphs
    (carrier,) = (item for item in attached.graph.initializer if item.name == graph.carrier)
    entries = {entry.key: entry.value for entry in carrier.external_data}
    assert entries.pop("location") == f"{weights.folder}/{BLOB}"
    assert entries == graph.entries
    assert len(graph.keys) == len(entries) - 2
    for model in (own, attached):
        for item in model.graph.initializer:
            if item.name == graph.carrier:
                del item.external_data[:]
    assert attached == own
    assert weights.attach("other.onnx", b"as it is") == b"as it is"
    with pytest.raises(GraphError, match="got 'prepacked_0'"):  # no bundle may contain it
        onnx_graph.read(weights.attach("decoder.onnx", data))


# --- unusable folders -------------------------------------------------------------------------


def alter(folder: Path) -> None:
    data = json.loads((folder / NAME).read_bytes())
    data["graphs"][0]["entries"]["length"] += "1"
    (folder / NAME).write_text(json.dumps(data))


def link(folder: Path) -> None:
    (folder / BLOB).rename(folder / "elsewhere")
    (folder / BLOB).symlink_to("elsewhere")


def export_again(folder: Path) -> None:
    bundle = open_bundle(folder.parent)
    manifest = msgspec.structs.replace(bundle.manifest, context_length=99)
    (folder.parent / "manifest.json").write_bytes(encode(manifest))


def another_onnxruntime(folder: Path) -> None:
    reseal(folder, partial(msgspec.structs.replace, onnxruntime="1.0"))


def another_processor(folder: Path) -> None:
    reseal(folder, partial(msgspec.structs.replace, processor=("x86_64", "avx9")))


DAMAGED: dict[str, Callable[[Path], object]] = {
    "of another onnxruntime": another_onnxruntime,
    "of another processor": another_processor,
    "of a bundle exported again": export_again,
    "altered": alter,
    "torn": lambda folder: os.truncate(folder / NAME, 100),
    "empty seal": lambda folder: (folder / SEAL).write_bytes(b""),
    "no manifest": lambda folder: (folder / NAME).unlink(),
    "no seal": lambda folder: (folder / SEAL).unlink(),
    "no blob": lambda folder: (folder / BLOB).unlink(),
    "truncated": lambda folder: os.truncate(folder / BLOB, 5000),
    "linked": link,
    "hard linked": lambda folder: os.link(folder / BLOB, folder / "again"),
    **{
        f"sealed {data[:20]!r}": partial(replace_manifest, data=data)
        for data in (b"", b"[]", b'{"schema": 2}', b"\xff", b"[" * 10000)
    },
}


def warning(path: Path, caplog: pytest.LogCaptureFixture) -> str:
    """Load a bundle whose packed weights are not usable, and return the warning."""
    caplog.clear()
    model = load(path)
    assert model.generate([1, 2], max_new_tokens=2).finish_reason == "length"
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("ortolan.runtime", logging.WARNING)
    text = record.getMessage().replace(VERSION, "VERSION")
    text = text.replace(" ".join(processor_features()), "FEATURES")
    return re.sub(r"\b[0-9a-f]{12,}\b", "HASH", text)


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_folder_is_not_used(
    bundle: Bundle,
    folder: Path,
    damage: str,
    caplog: pytest.LogCaptureFixture,
    snapshot: SnapshotAssertion,
) -> None:
    DAMAGED[damage](folder)
    assert warning(bundle.path, caplog) == snapshot


def test_packed_weights_of_another_bundle_or_user_are_not_used(
    bundle: Bundle,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = packed_bundles.write(tmp_path / "other", "int4", seed=1)
    shutil.copytree(folder, other.path / folder.name)
    assert "expected packed weights for the bundle" in warning(other.path, caplog)
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "other user"))
    reason = "expected packed weights that this user made on this machine, got a packed.json with"
    shutil.copytree(folder, bundle.path / ("packed-" + "0" * 16))
    assert reason in warning(bundle.path, caplog)
    assert caplog.messages[0].startswith(folder.name)
    seal.make_seal(b"another key")
    assert reason in warning(bundle.path, caplog)


def test_an_altered_blob_is_found_by_a_full_check_and_by_verify(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, attached: list[str]
) -> None:
    bundle = packed_bundles.write(tmp_path / "bundle", "fp32")
    pack(bundle)
    attached.clear()
    assert verify(bundle.path, isolate=False).verdict == "PASS"
    assert attached == ["decoder.onnx"]
    (blob,) = bundle.path.glob(f"*/{BLOB}")
    data = bytearray(blob.read_bytes())
    data[1000] ^= 1
    blob.write_bytes(data)
    assert find_packed(bundle, onnxruntime=VERSION) is not None
    assert caplog.records == []
    for check in (partial(load, full_check=True), partial(verify, isolate=False)):
        with pytest.raises(BundleFileError, match=r"packed\.bin was altered"):
            check(bundle.path)


# --- seals --------------------------------------------------------------------------------------

VARIABLE = "LOCALAPPDATA" if os.name == "nt" else "XDG_STATE_HOME"


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path / "ortolan" / "seal.key"


def test_a_seal_fits_its_data_only_and_only_the_user_may_read_the_key(key: Path) -> None:
    made = seal.make_seal(b"data")
    assert seal.make_seal(b"data") == made
    assert seal.check_seal(b"data", made)
    for data, other in ((b"Data", made), (b"data", made[:-1]), (b"data", b"")):
        assert not seal.check_seal(data, other)
    assert key.stat().st_size == 32
    assert key.stat().st_mode & 0o777 == 0o600
    assert list(key.parent.iterdir()) == [key]


def test_an_incomplete_key_is_replaced(key: Path) -> None:
    assert not seal.check_seal(b"data", b"0" * 64)
    assert not key.exists()  # checking creates none
    key.parent.mkdir()
    key.write_bytes(b"short")
    assert not seal.check_seal(b"data", b"0" * 64)
    assert seal.check_seal(b"data", seal.make_seal(b"data"))


def test_a_state_folder_that_cannot_be_created_is_an_error(key: Path) -> None:
    key.parent.write_text("in the way")
    with pytest.raises(OSError, match="ortolan"):
        seal.make_seal(b"data")
    assert not seal.check_seal(b"data", b"0" * 64)


def test_a_relative_state_folder_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "relative")
    monkeypatch.setenv("USERPROFILE" if os.name == "nt" else "HOME", str(tmp_path / "home"))
    seal.make_seal(b"data")
    assert (tmp_path / "home/.local/state/ortolan/seal.key").exists()
    assert not (tmp_path / "relative").exists()
