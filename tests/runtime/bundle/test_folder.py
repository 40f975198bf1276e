import os
import re
import shutil
import socket
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime import tiny_bundle

from ortolan.runtime.bundle import files as plain_file
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.manifest import NAME
from ortolan.runtime.errors import BundleError, BundleFileError

MANIFEST = tiny_bundle.manifest_of(tiny_bundle.files_of(tiny_bundle.model()))
LISTED = tuple(file.name for file in MANIFEST.files)
EVERY = (NAME, *LISTED)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_bundle.write(tmp_path / "bundle")
    return tmp_path / "bundle"


def rejected(folder: Path, name: str, *, full_check: bool = False) -> str:
    """Text of the error for a bundle with a damaged file, without its name and numbers."""
    text = refusal(lambda: open_bundle(folder, full_check=full_check), folder)
    assert name in text
    return re.sub(r"\d+", "N", re.sub("[0-9a-f]{64}", "HASH", text.replace(name, "NAME")))


def flipped(data: bytes, offset: int, bit: int) -> bytes:
    return data[:offset] + bytes([data[offset] ^ 1 << bit]) + data[offset + 1 :]


def flip(path: Path, offset: int) -> None:
    path.write_bytes(flipped(path.read_bytes(), offset, 0))


@pytest.mark.parametrize("full_check", [False, True])
def test_opened_bundle_has_manifest_graphs_and_files(folder: Path, full_check: bool) -> None:
    bundle = open_bundle(folder, full_check=full_check)
    assert bundle.path == folder
    assert bundle.manifest == MANIFEST
    assert list(bundle.graphs) == ["decoder"]
    assert len(bundle.graphs["decoder"].external) == 3
    with pytest.raises(FrozenInstanceError):
        bundle.path = folder  # type: ignore[misc]
    for name in LISTED:
        assert bundle.file(name) == folder / name
        assert bundle.read(name) == (folder / name).read_bytes()


@pytest.mark.parametrize("name", [NAME, "notes.txt", "../bundle/tokenizer.json", "", "."])
def test_unlisted_files_cannot_be_read(folder: Path, name: str) -> None:
    (folder / "notes.txt").write_text("mine")
    bundle = open_bundle(folder)
    for get in (bundle.file, bundle.read):
        with pytest.raises(BundleFileError, match="lists"):
            get(name)


def test_path_does_not_depend_on_the_working_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    bundle = open_bundle("bundle")
    monkeypatch.chdir("/")
    assert bundle.read("tokenizer.json") == b'{"version": "1.0"}'


def test_progress_counts_every_checked_byte(folder: Path) -> None:
    sizes = {file.name: file.size for file in MANIFEST.files}
    counts: list[int] = []
    open_bundle(folder, progress=counts.append)
    without_weights = sum(counts)
    open_bundle(folder, full_check=True, progress=counts.append)
    assert without_weights == sum(sizes.values()) - sizes[tiny_bundle.BLOB_NAME]
    assert sum(counts) - without_weights == sum(sizes.values())


@pytest.mark.parametrize("name", LISTED)
@pytest.mark.parametrize("place", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_a_flipped_bit_is_named(folder: Path, name: str, place: float) -> None:
    path = folder / name
    original = path.read_bytes()
    for bit in (0, 7):
        path.write_bytes(flipped(original, round(place * (len(original) - 1)), bit))
        assert "NAME: expected shaN HASH, got HASH" in rejected(folder, name, full_check=True)


def test_every_flip_in_the_list_of_files_is_rejected(folder: Path) -> None:
    path = folder / NAME
    original = path.read_bytes()
    start, end = original.index(b'"files"'), original.index(b'"provenance"')
    for offset in range(start, end, 3):
        path.write_bytes(flipped(original, offset, offset % 8))
        with pytest.raises(BundleError):
            open_bundle(folder, full_check=True)


def resized(share: float) -> Callable[[Path, Path], None]:
    def change(path: Path, outside: Path) -> None:
        data = path.read_bytes()
        size = int(len(data) * share) + (share > 1)
        path.write_bytes(data.ljust(size, b"x")[:size])

    return change


def to_symlink(path: Path, outside: Path) -> None:
    shutil.move(path, outside)
    path.symlink_to(outside)


def to_symlink_within(path: Path, outside: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real").name)


def to_hard_link(path: Path, outside: Path) -> None:
    os.link(path, outside)


def to_folder(path: Path, outside: Path) -> None:
    path.unlink()
    path.mkdir()


def to_pipe(path: Path, outside: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def to_socket(path: Path, outside: Path) -> None:
    path.unlink()
    before = Path.cwd()
    os.chdir(path.parent)  # the path of a socket may have 108 characters only
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(before)


DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "empty": resized(0.0),
    "half": resized(0.5),
    "cut": resized(0.999),
    "longer": resized(1.001),
    "missing": lambda path, outside: path.rename(outside),
    "a link": to_symlink,
    "a link within": to_symlink_within,
    "a hard link": to_hard_link,
    "a folder": to_folder,
    "a pipe": to_pipe,
    "a socket": to_socket,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_of_another_size_or_that_is_no_plain_file_is_named(
    tmp_path: Path, damage: str, snapshot: SnapshotAssertion
) -> None:
    texts = {}
    for number, name in enumerate(EVERY):
        folder = tmp_path / f"{number}"
        tiny_bundle.write(folder)
        DAMAGES[damage](folder / name, tmp_path / f"outside {number}")
        texts[name] = rejected(folder, name)
    manifest = texts.pop(NAME)
    (listed,) = set(texts.values())
    assert {"manifest": manifest, "listed": listed} == snapshot


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
@pytest.mark.parametrize("name", EVERY)
def test_unreadable_file_is_named(folder: Path, name: str) -> None:
    (folder / name).chmod(0)
    assert rejected(folder, name).startswith("BundleFileError")


def copied(path: Path, outside: Path) -> None:
    shutil.copy(path, outside)
    outside.replace(path)


@pytest.mark.parametrize("name", LISTED)
@pytest.mark.parametrize(
    ("replace", "kind"),
    [
        (to_symlink, "symbolic link"),
        (to_hard_link, "N hard links"),
        (to_folder, "a folder"),
        (to_pipe, "a pipe"),
        (copied, "replaced while it was opened"),
    ],
)
def test_file_swapped_while_it_is_opened_is_rejected(
    folder: Path,
    name: str,
    replace: Callable[[Path, Path], None],
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    really_check, checks = plain_file._check_plain, 0

    def check(checked: str, status: os.stat_result) -> None:
        """Swap the file after it was checked and before it is opened."""
        nonlocal checks
        really_check(checked, status)
        checks += checked == name
        if checked == name and checks == 1:
            replace(folder / name, folder.parent / "outside")

    monkeypatch.setattr(plain_file, "_check_plain", check)
    assert kind in rejected(folder, name)


def test_reading_checks_again(folder: Path) -> None:
    bundle = open_bundle(folder)
    flip(folder / "tokenizer.json", 3)
    with pytest.raises(BundleFileError, match=r"tokenizer\.json: expected sha256"):
        bundle.read("tokenizer.json")


def test_failing_disk_is_a_typed_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = MagicMock()
    stream.__enter__.return_value.read.side_effect = OSError(5, "Input/output error")
    stream.__enter__.return_value.fileno.return_value = 0
    monkeypatch.setattr("ortolan.runtime.bundle.folder.open_plain", lambda *_: stream)
    assert "Input/output error" in rejected(folder, NAME)


def test_no_descriptor_is_left_open(folder: Path) -> None:
    before = sorted(os.listdir("/dev/fd"))
    open_bundle(folder, full_check=True)
    for name in LISTED:
        os.truncate(folder / name, 0)
        rejected(folder, "")
    to_folder(folder / "certificate.bin", folder)
    rejected(folder, "certificate.bin")
    assert sorted(os.listdir("/dev/fd")) == before


def test_only_listed_files_are_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "notes.txt").write_text("mine")
    (folder / "weights.tmp").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe")
    opened: list[str] = []
    really_open = os.open

    def record(path: Path, flags: int, *, dir_fd: int | None = None) -> int:
        opened.append(str(path))
        return really_open(path, flags, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", record)
        open_bundle(folder, full_check=True)
    assert {path for path in opened if path != str(folder)} == set(EVERY)


def test_folder_behind_a_symbolic_link_is_opened(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    bundle = open_bundle(tmp_path / "link")
    assert bundle.path == tmp_path / "link"
    assert bundle.read("tokenizer.json")


def test_paths_without_a_bundle_are_told_apart(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    paths = [tmp_path / name for name in ("nothing", "empty", "file", "x" * 5000, "\udcff")]
    texts = [refusal(partial(open_bundle, path), path, tmp_path) for path in paths]
    assert texts == snapshot


def test_rejected_graphs_are_named(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    custom, elsewhere = tiny_bundle.model(), tiny_bundle.model()
    custom.graph.node[0].domain = "custom"
    tensor = tiny_bundle.external("more", (1,), "certificate.bin", 0, 4)
    elsewhere.graph.initializer.append(tensor)
    for name, model in (("custom", custom), ("elsewhere", elsewhere)):
        tiny_bundle.write(tmp_path / name, {"decoder.onnx": model.SerializeToString()})
        assert refusal(partial(open_bundle, tmp_path / name)) == snapshot(name=name)
