"""models/pythonic: the text it is trained on, the standard library's source."""

import sysconfig
from pathlib import Path

import pytest

from pythonic.data import read, xz_bits_per_byte

LINE = "def add(first, second):\n    return first + second\n"


@pytest.fixture
def stdlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library of a few files."""
    root = tmp_path / "stdlib"
    files = {
        "a.py": LINE * 20,
        "package/b.py": LINE.replace("add", "sum") * 20,
        "held/c.py": LINE * 3,
        "vendored/d.py": "import os\n",
        "e.txt": "not Python",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "latin1.py").write_bytes("# é\n".encode("latin-1"))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(root) if name == "stdlib" else "")
    return root


def test_texts_are_the_files_that_the_options_select(stdlib: Path) -> None:
    texts = read(held_out=("held",), exclude=("vendored/*",))
    read_files = [(stdlib / name).read_text() for name in ("a.py", "package/b.py", "held/c.py")]
    assert texts.train == read_files[:2]
    assert texts.held_out == read_files[2:]


def test_a_folder_whose_name_only_begins_with_a_held_out_name_is_not(stdlib: Path) -> None:
    (stdlib / "heldover").mkdir()
    (stdlib / "heldover/f.py").write_text("x = 1\n")
    assert "x = 1\n" in read(held_out=("held",)).train


def test_xz_compresses_all_files_together_better_than_each() -> None:
    single, together = xz_bits_per_byte([LINE * 10, LINE * 12]).values()
    assert 0 < together < single
