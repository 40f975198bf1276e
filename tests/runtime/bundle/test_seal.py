import os
from pathlib import Path

import pytest

from ortolan.runtime.bundle.seal import check_seal, make_seal

VARIABLE = "LOCALAPPDATA" if os.name == "nt" else "XDG_STATE_HOME"


@pytest.fixture(autouse=True)
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path / "ortolan" / "seal.key"


def test_a_seal_fits_its_data_only() -> None:
    seal = make_seal(b"data")
    assert check_seal(b"data", seal)
    assert not check_seal(b"Data", seal)
    assert not check_seal(b"data", seal[:-1])
    assert not check_seal(b"data", b"")
    assert make_seal(b"data") == seal


def test_only_the_user_may_read_the_key(key: Path) -> None:
    make_seal(b"data")
    assert key.stat().st_size == 32
    assert key.stat().st_mode & 0o777 == 0o600
    assert list(key.parent.iterdir()) == [key]


def test_another_key_makes_another_seal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seal = make_seal(b"data")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "other"))
    assert not check_seal(b"data", seal)
    assert make_seal(b"data") != seal


def test_checking_creates_no_key(key: Path) -> None:
    assert not check_seal(b"data", b"0" * 64)
    assert not key.exists()


def test_an_incomplete_key_is_replaced(key: Path) -> None:
    key.parent.mkdir()
    key.write_bytes(b"short")
    assert not check_seal(b"data", b"0" * 64)
    assert check_seal(b"data", make_seal(b"data"))


def test_a_state_folder_that_cannot_be_created_is_an_error(key: Path) -> None:
    key.parent.write_text("in the way")
    with pytest.raises(OSError, match="ortolan"):
        make_seal(b"data")
    assert not check_seal(b"data", b"0" * 64)


def test_a_relative_state_folder_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "relative")
    monkeypatch.setenv("USERPROFILE" if os.name == "nt" else "HOME", str(tmp_path / "home"))
    make_seal(b"data")
    assert (tmp_path / "home/.local/state/ortolan/seal.key").exists()
    assert not (tmp_path / "relative").exists()
