import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime import tiny_bundle

from ortolan.export.errors import OutputError
from ortolan.export.output import describe_files, staged_bundle, write_manifest
from ortolan.runtime import BundleNotFoundError, open_bundle
from ortolan.runtime.bundle.manifest import File
from ortolan.staging import Place, settle

OLD, NEW, NEXT = b"old", b"new", b"next"

GRAPH = tiny_bundle.model()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "place" / "bundle"


def fill(folder: Path, marker: bytes) -> None:
    """Write a bundle whose certificate is the marker."""
    files = tiny_bundle.files_of(GRAPH) | {"certificate.bin": marker}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    manifest = tiny_bundle.manifest_of(files)
    write_manifest(folder, msgspec.structs.replace(manifest, files=describe_files(folder)))


def export(
    target: Path,
    marker: bytes,
    *,
    force: bool = True,
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    with staged_bundle(target, force=force) as folder:
        fill(folder, marker)
        meanwhile()


def marker_at(target: Path) -> bytes | None:
    """The marker of the bundle, every file checked; None without a bundle."""
    try:
        bundle = open_bundle(target, full_check=True)
    except BundleNotFoundError:
        return None
    return bundle.read("certificate.bin")


def beside(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir())


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_bundle_needs_no_force(exists: bool, target: Path) -> None:
    if exists:
        target.mkdir(parents=True)
    export(target, NEW, force=False)
    assert marker_at(target) == NEW
    assert beside(target) == ["bundle"]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("name", "contents", "has_bundle", "words"),
    [
        ("thesis.txt", b"years of work", False, "not a bundle"),
        ("manifest.json", b'{"name": "a web page"}', False, "not a bundle"),
        ("notes.txt", b"which prompt worked", True, r"\(notes\.txt\)"),
    ],
)
def test_other_files_are_never_replaced(
    name: str, contents: bytes, has_bundle: bool, words: str, force: bool, target: Path
) -> None:
    if has_bundle:
        export(target, OLD)
    target.mkdir(parents=True, exist_ok=True)
    (target / name).write_bytes(contents)
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    with pytest.raises(OutputError, match=words):
        export(target, NEW, force=force)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert beside(target) == ["bundle"]


def test_a_bundle_is_replaced_with_force_only_its_packed_weights_included(target: Path) -> None:
    export(target, OLD)
    for name in ("packed-0123456789abcdef", ".packing"):
        (target / name).mkdir()
        (target / name / "packed.bin").write_bytes(b"of the old weights")
    with pytest.raises(OutputError, match="--force"):
        export(target, NEW, force=False)
    assert marker_at(target) == OLD
    export(target, NEW, force=True)
    assert marker_at(target) == NEW
    assert not [path for path in target.iterdir() if path.is_dir()]


def test_files_that_appear_during_the_export_are_kept(target: Path) -> None:
    def interfere() -> None:
        target.mkdir()
        (target / "thesis.txt").write_text("years of work")

    with pytest.raises(OutputError, match="not a bundle"):
        export(target, NEW, meanwhile=interfere)
    assert (target / "thesis.txt").read_text() == "years of work"
    assert beside(target) == ["bundle"]


def test_link_to_a_folder_stays_and_the_folder_is_replaced(target: Path, tmp_path: Path) -> None:
    real = tmp_path / "disk" / "real"
    export(real, OLD)
    target.parent.mkdir()
    target.symlink_to(real)
    export(target, NEW)
    assert target.is_symlink()
    assert not real.is_symlink()
    assert marker_at(real) == NEW
    assert (beside(target), beside(real)) == (["bundle"], ["real"])


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_a_failure_keeps_the_old_bundle(error: type[BaseException], target: Path) -> None:
    def fail() -> None:
        raise error

    export(target, OLD)
    with pytest.raises(OutputError if error is OSError else error):
        export(target, NEW, meanwhile=fail)
    assert marker_at(target) == OLD
    assert beside(target) == ["bundle"]


def test_a_target_is_untouched_until_the_export_ends_and_a_second_one_is_rejected(
    target: Path,
) -> None:
    export(target, OLD)
    with staged_bundle(target, force=True) as folder:
        with pytest.raises(OutputError, match="another process is writing there"):
            export(target, NEXT)
        fill(folder, NEW)
        assert marker_at(target) == OLD
        export(target.parent / "elsewhere", NEXT)
    assert marker_at(target) == NEW
    assert beside(target) == ["bundle", "elsewhere"]


def test_a_file_at_the_target_or_its_folder_is_never_replaced(
    target: Path, snapshot: SnapshotAssertion
) -> None:
    target.parent.write_text("a file")
    for path in (target, target.parent):
        text = refusal(partial(export, path, NEW), target.parent.parent)
        assert re.sub(r"\[Errno \d+\]", "[...]", text) == snapshot
    assert target.parent.read_text() == "a file"


def test_a_half_deleted_bundle_is_not_restored(target: Path) -> None:
    old = target.parent / ".bundle.old"
    export(old, OLD)
    (old / "manifest.json").unlink()
    settle(Place(target, index="manifest.json"))
    assert not target.exists()
    assert not old.exists()


def test_files_are_described_in_order_without_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "b.bin").write_bytes(b"beta")
    (tmp_path / "a.bin").write_bytes(b"")
    (tmp_path / "manifest.json").write_bytes(b"{}")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    known = File(name="b.bin", size=4, sha256="1" * 64)
    assert describe_files(tmp_path, (known,)) == (
        File(name="a.bin", size=0, sha256=empty),
        known,
    )
    read = describe_files(tmp_path)[1]
    assert (read.size, read.sha256[:8]) == (4, "f44e64e7")
