import json
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import onnx
import pytest
from tests.runtime import packed_bundles

from ortolan.runtime import BundleFileError, GraphError, load, verify
from ortolan.runtime.bundle import packed, seal
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.packed import (
    BLOB,
    NAME,
    SEAL,
    Packed,
    PackedManifest,
    Span,
    find_packed,
    folder_name,
)
from ortolan.runtime.engine.providers import onnxruntime_version
from ortolan.runtime.graph import rules as onnx_graph
from ortolan.runtime.pack.write import pack

VERSION = onnxruntime_version()

ADVICE = "Run `ortolan pack` again, or delete the folder."


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


def refusal(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> str:
    """Load a bundle whose packed weights are not usable, and return the warning."""
    caplog.clear()
    model = load(bundle.path)
    assert model.generate([1, 2], max_new_tokens=2).finish_reason == "length"
    (record,) = caplog.records
    assert record.name == "ortolan.runtime"
    assert record.levelno == logging.WARNING
    message = record.getMessage()
    assert message.startswith("packed-")
    assert message.endswith(ADVICE)
    return message


def usable(bundle: Bundle) -> Packed:
    """The packed weights of a bundle, which must be usable."""
    weights = find_packed(bundle, onnxruntime=VERSION)
    assert weights is not None
    return weights


def reseal(folder: Path, change: Callable[[PackedManifest], PackedManifest]) -> None:
    """Change a packed manifest and seal it again."""
    manifest = change(msgspec.json.decode((folder / NAME).read_bytes(), type=PackedManifest))
    (folder / NAME).write_bytes(packed.encode(manifest))
    (folder / SEAL).write_bytes(seal.make_seal((folder / NAME).read_bytes()))


# --- usable folders -----------------------------------------------------------------------------


def test_what_was_packed_here_is_used_without_a_warning(
    bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    weights = find_packed(bundle, onnxruntime=VERSION, full_check=True)
    assert weights is not None
    assert weights.folder == folder_name(VERSION)
    load(bundle.path, full_check=True)
    assert caplog.records == []


def test_a_bundle_that_was_not_packed_warns_of_nothing(
    bundle: Bundle, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(folder)
    assert find_packed(bundle, onnxruntime=VERSION) is None
    assert caplog.records == []


def test_only_folders_with_the_right_name_are_looked_at(
    bundle: Bundle, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (".packing", "packed-", "packed-\x1b[31m", "packed-0123456789ABCDEF"):
        shutil.copytree(folder, bundle.path / name)
    (bundle.path / ("packed-" + "0" * 16)).write_text("a file")
    (bundle.path / ("packed-" + "1" * 16)).symlink_to(folder)
    shutil.rmtree(folder)
    assert find_packed(bundle, onnxruntime=VERSION) is None
    assert caplog.records == []


def test_packed_weights_of_another_machine_are_ignored(
    bundle: Bundle, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = shutil.copytree(folder, bundle.path / ("packed-" + "0" * 16))
    reseal(other, lambda manifest: msgspec.structs.replace(manifest, onnxruntime="1.0"))
    assert find_packed(bundle, onnxruntime=VERSION) is not None
    assert caplog.records == []
    shutil.rmtree(folder)
    message = refusal(bundle, caplog)
    assert f"expected packed weights for onnxruntime {VERSION}, got those for 1.0" in message


def test_the_name_of_the_folder_follows_version_and_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {folder_name("1.31.1"), folder_name("1.31.2")}
    monkeypatch.setattr(packed, "processor_features", lambda: ("x86_64", "avx"))
    names |= {folder_name("1.31.1"), folder_name("1.31.2")}
    assert len(names) == 4


def test_a_graph_refers_to_packed_weights_and_is_otherwise_unchanged(bundle: Bundle) -> None:
    weights = usable(bundle)
    data = bundle.read("decoder.onnx")
    own = onnx.load_from_string(data)
    attached = onnx.load_from_string(weights.attach("decoder.onnx", data))
    (graph,) = weights.manifest.graphs
    (carrier,) = (item for item in attached.graph.initializer if item.name == graph.carrier.name)
    entries = {entry.key: entry.value for entry in carrier.external_data}
    assert entries.pop("location") == f"{weights.folder}/{BLOB}"
    assert int(entries.pop("offset")) == graph.carrier.span.offset
    assert int(entries.pop("length")) == graph.carrier.span.length
    first = graph.weights[0]
    assert entries["prepacked_0"] == "|".join(
        [first.key, *(f"{span.offset};{span.length};0" for span in first.spans)]
    )
    assert len(entries) == len(graph.weights)
    for model in (own, attached):
        for item in model.graph.initializer:
            if item.name == graph.carrier.name:
                del item.external_data[:]
    assert attached == own

    assert weights.attach("other.onnx", b"as it is") == b"as it is"


def test_a_bundle_may_not_contain_such_a_graph(bundle: Bundle) -> None:
    weights = usable(bundle)
    with pytest.raises(GraphError, match="got 'prepacked_0'"):
        onnx_graph.read(weights.attach("decoder.onnx", bundle.read("decoder.onnx")))


# --- unusable folders -------------------------------------------------------------------------


def test_after_an_update_of_onnxruntime_the_old_folder_is_named(
    bundle: Bundle, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert find_packed(bundle, onnxruntime="99.0") is None
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"{folder.name}: expected packed weights for onnxruntime 99.0, got those for {VERSION}."
    )


def test_another_processor_is_named(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(packed, "processor_features", lambda: ("x86_64", "avx9"))
    message = refusal(bundle, caplog)
    assert "expected packed weights for a processor with x86_64 avx9, got those for" in message


def test_packed_weights_of_another_bundle_are_not_used(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = packed_bundles.write(tmp_path / "other", "int4", seed=1)
    shutil.copytree(folder, other.path / folder.name)
    assert "expected packed weights for the bundle" in refusal(other, caplog)


def test_a_bundle_that_was_exported_again_is_another_bundle(
    bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = msgspec.structs.replace(bundle.manifest, context_length=99)
    assert find_packed(replace(bundle, manifest=manifest), onnxruntime=VERSION) is None
    assert "expected packed weights for the bundle" in caplog.text


def test_a_seal_of_another_user_is_not_accepted(
    bundle: Bundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "other user"))
    reason = "expected packed weights that this user made on this machine, got a packed.json with"
    assert reason in refusal(bundle, caplog)
    seal.make_seal(b"another key")
    assert reason in refusal(bundle, caplog)


def alter(folder: Path) -> None:
    data = json.loads((folder / NAME).read_bytes())
    data["graphs"][0]["weights"][0]["spans"][0]["length"] += 1
    (folder / NAME).write_text(json.dumps(data))


def link(folder: Path) -> None:
    (folder / BLOB).rename(folder / "elsewhere")
    (folder / BLOB).symlink_to("elsewhere")


def with_span(offset: int, length: int) -> Callable[[PackedManifest], PackedManifest]:
    def change(manifest: PackedManifest) -> PackedManifest:
        (graph,) = manifest.graphs
        first, *rest = graph.weights
        moved = msgspec.structs.replace(first, spans=(Span(offset=offset, length=length),))
        graph = msgspec.structs.replace(graph, weights=(moved, *rest))
        return msgspec.structs.replace(manifest, graphs=(graph,))

    return change


def without_carrier(manifest: PackedManifest) -> PackedManifest:
    (graph,) = manifest.graphs
    carrier = msgspec.structs.replace(graph.carrier, name="0.q.codes")
    graph = msgspec.structs.replace(graph, carrier=carrier)
    return msgspec.structs.replace(manifest, graphs=(graph,))


def replace_manifest(data: bytes, folder: Path) -> None:
    (folder / NAME).write_bytes(data)
    (folder / SEAL).write_bytes(seal.make_seal(data))


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "altered": (alter, "with another seal"),
    "torn": (lambda folder: os.truncate(folder / NAME, 100), "with another seal"),
    "empty seal": (lambda folder: (folder / SEAL).write_bytes(b""), "with another seal"),
    "no manifest": (lambda folder: (folder / NAME).unlink(), "expected packed.json as it was"),
    "no seal": (lambda folder: (folder / SEAL).unlink(), "expected packed.seal as it was"),
    "no blob": (lambda folder: (folder / BLOB).unlink(), "expected packed.bin as it was"),
    "truncated": (lambda folder: os.truncate(folder / BLOB, 5000), "bytes, got 5000"),
    "linked": (link, "packed.bin is a symbolic link"),
    "hard linked": (lambda folder: os.link(folder / BLOB, folder / "again"), "2 hard links"),
    "unaligned": (lambda folder: reseal(folder, with_span(512, 512)), "schema 1"),
    "negative": (lambda folder: reseal(folder, with_span(-65536, 512)), "schema 1"),
    "another carrier": (
        lambda folder: reseal(folder, without_carrier),
        "bytes for '0.q.codes' of decoder.onnx",
    ),
    **{
        f"sealed {data[:20]!r}": (partial(replace_manifest, data), "a packed.json of schema 1")
        for data in (b"", b"[]", b'{"schema": 2}', b"\xff", b"[" * 10000)
    },
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_folder_is_not_used(
    bundle: Bundle, folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    change, reason = DAMAGED[damage]
    change(folder)
    assert reason in refusal(bundle, caplog)


@pytest.mark.parametrize("beyond", [0, 1])
def test_packed_weights_end_where_the_file_ends(
    bundle: Bundle, folder: Path, beyond: int, caplog: pytest.LogCaptureFixture
) -> None:
    size = (folder / BLOB).stat().st_size
    reseal(folder, with_span(0, size + beyond))
    assert (find_packed(bundle, onnxruntime=VERSION) is None) is (beyond == 1)
    assert (f"within the {size} bytes of packed.bin" in caplog.text) is (beyond == 1)


def test_an_altered_blob_is_found_by_a_full_check(
    bundle: Bundle, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (folder / BLOB).open("r+b") as stream:
        stream.seek(1000)
        byte = stream.read(1)[0]
        stream.seek(1000)
        stream.write(bytes([byte ^ 1]))
    assert isinstance(find_packed(bundle, onnxruntime=VERSION), Packed)
    assert caplog.records == []
    with pytest.raises(BundleFileError, match=r"packed\.bin was altered"):
        load(bundle.path, full_check=True)


def test_verify_checks_what_runs(tmp_path: Path, attached: list[str]) -> None:
    bundle = packed_bundles.write(tmp_path / "bundle", "fp32")
    pack(bundle)
    attached.clear()
    assert verify(bundle.path, isolate=False).verdict == "PASS"
    assert attached == ["decoder.onnx"]
    (blob,) = bundle.path.glob(f"*/{BLOB}")
    blob.write_bytes(bytes(blob.stat().st_size))
    with pytest.raises(BundleFileError, match=r"packed\.bin was altered"):
        verify(bundle.path, isolate=False)
