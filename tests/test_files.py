"""Files are replaced; devices, pipes, folders and links are not."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runtime import tiny_decoder

import ortolan
from ortolan import files
from ortolan.export.errors import OutputError
from ortolan.export.output import staged_bundle
from ortolan.modeling.checkpoint.folder import replaced as replaced_checkpoint
from ortolan.modeling.errors import CheckpointError
from ortolan.runtime.errors import StateFileError

Put = Callable[[Path], object]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "Free some disk space."),
        (errno.EDQUOT, "Free some disk space."),
        (errno.EACCES, "Check the permissions."),
        (errno.EROFS, "Check the permissions."),
        (errno.ENOENT, ""),
        (errno.EIO, ""),
    ],
)
def test_only_a_full_disk_is_called_full(number: int, remedy: str, tmp_path: Path) -> None:
    said = OSError(number, os.strerror(number))
    with pytest.raises(OutputError) as caught, staged_bundle(tmp_path / "bundle", force=False):
        raise said
    assert str(caught.value).endswith(f"bundle: {said}. {remedy}".rstrip())


def _loop(path: Path) -> None:
    path.symlink_to(path.with_name("other"))
    path.with_name("other").symlink_to(path)


def _device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root may make a device")


NO_FILES: dict[str, Put] = {
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "device": _device,
    "link to a device": lambda path: path.symlink_to("/dev/null"),
    "link to a folder": lambda path: path.symlink_to(path.parent),
    "loop of links": _loop,
}


def _kinds(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IFMT(path.lstat().st_mode) for path in folder.iterdir()}


def _write(path: Path) -> None:
    with files.replaced(path) as file:
        file.write(b"new")


def _write_checkpoint(path: Path) -> None:
    with replaced_checkpoint(path.parent) as folder:
        (folder / path.name).write_bytes(b"new")
        (folder / "config.json").write_bytes(b"new")


def _write_bundle(path: Path) -> None:
    with staged_bundle(path, force=True) as folder:
        (folder / "manifest.json").write_bytes(b"new")


@pytest.mark.parametrize("put", NO_FILES.values(), ids=NO_FILES)
def test_only_files_and_folders_of_bundles_are_replaced(put: Put, tmp_path: Path) -> None:
    place = tmp_path / "model.safetensors"
    put(place)
    before = _kinds(tmp_path)
    with pytest.raises(OSError, match=place.name):
        _write(place)
    with pytest.raises(CheckpointError, match=place.name):
        _write_checkpoint(place)
    if not place.is_dir():
        with pytest.raises(OutputError):
            _write_bundle(place)
    assert _kinds(tmp_path) == before


def test_a_session_is_not_saved_to_a_device(tmp_path: Path) -> None:
    tiny_decoder.write_bundle(tmp_path / "bundle")
    model = ortolan.load(tmp_path / "bundle", ortolan.Decoder, threads=1)
    with pytest.raises(StateFileError, match="cannot be saved there"):
        model.session().save("/dev/null")


@pytest.mark.parametrize("is_there", [True, False], ids=["file", "nothing"])
def test_a_link_stays_and_what_it_points_to_is_replaced(is_there: bool, tmp_path: Path) -> None:
    real, link = tmp_path / "disk" / "real", tmp_path / "link"
    real.parent.mkdir()
    if is_there:
        real.write_bytes(b"old")
    link.symlink_to(real)
    _write(link)
    assert (link.is_symlink(), real.read_bytes()) == (True, b"new")
    assert os.listdir(real.parent) == ["real"]


def test_a_checkpoint_replaces_no_link_to_a_file(tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    blob.write_bytes(b"of others")
    link = tmp_path / "saved" / "model.safetensors"
    link.parent.mkdir()
    link.symlink_to(blob)
    with pytest.raises(CheckpointError, match="A link is there"):
        _write_checkpoint(link)
    assert link.is_symlink()
    assert blob.read_bytes() == b"of others"
