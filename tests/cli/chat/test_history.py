"""The history of chats: what was typed comes back, and only this user sees it."""

import os
from pathlib import Path

import pytest

from ortolan.cli.chat import history
from ortolan.cli.chat.history import add_to_history, read_history
from ortolan.errors import OrtolanError


def test_entries_come_back_with_all_of_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history"
    entries = ["one", "two\nlines\n\n", "/set seed 1", "日本\u2028\x85\x1b", "one"]
    assert read_history(path) == []
    for entry in entries:
        add_to_history(path, entry)
        add_to_history(path, entry)  # repeats the last one
    assert read_history(path) == entries


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_only_the_user_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history"
    add_to_history(path, "one")
    path.chmod(0o644)
    add_to_history(path, "two")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_oldest_entries_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history"
    monkeypatch.setattr(history, "MOST_ENTRIES", 3)
    monkeypatch.setattr(history, "MOST_BYTES", 40)
    for number in range(5):
        add_to_history(path, f"{number}")
    assert read_history(path) == ["2", "3", "4"]
    add_to_history(path, "x" * 31)
    assert read_history(path) == ["4", "x" * 31]
    add_to_history(path, "y" * 38)  # larger than the file may be
    assert read_history(path) == ["4", "x" * 31]


@pytest.mark.parametrize("content", [b"\xff\n", b"plain\n", b"[1]\n", b'"a"\n{}\n', b"[" * 5000])
def test_something_else_is_refused_and_stays(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(content)
    for action in (lambda: read_history(path), lambda: add_to_history(path, "one")):
        with pytest.raises(OrtolanError, match="history"):
            action()
    assert path.read_bytes() == content


def test_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(OrtolanError, match="history"):
        add_to_history(tmp_path / "state" / "history", "one")
