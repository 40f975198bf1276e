"""What export and pack do not test themselves (tests/export/test_output.py, tests/runtime/pack)."""

from pathlib import Path

import pytest

from ortolan.runtime.bundle.staging import BusyError, Place, settle, staged

INDEX = "index.json"


def write(place: Place, contents: str) -> None:
    with staged(place) as folder:
        (folder / INDEX).write_text(contents)


def read(place: Place) -> str:
    return (place.target / INDEX).read_text()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "made", index=INDEX, name="making")


def test_folder_replaces_the_one_before_it_and_leaves_nothing_else(place: Place) -> None:
    write(place, "old")
    write(place, "new")
    assert read(place) == "new"
    assert [path.name for path in place.target.parent.iterdir()] == ["made"]


def test_one_name_keeps_two_targets_apart_in_time(place: Place, tmp_path: Path) -> None:
    other = Place(tmp_path / "other", index=INDEX, name="making")
    with staged(place) as folder:
        assert folder == tmp_path / ".making.new"
        with pytest.raises(BusyError), staged(other):
            pass
        (folder / INDEX).touch()
    write(other, "later")
    assert read(other) == "later"


def test_leftovers_of_another_target_are_cleared_away(place: Place, tmp_path: Path) -> None:
    (tmp_path / ".making.new").mkdir()
    (tmp_path / ".making.new" / "half").touch()
    write(place, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


@pytest.mark.parametrize("role", ["new", "old", "lock"])
def test_no_link_is_followed(role: str, place: Place, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / INDEX).write_text("somebody's")
    place.beside(role).symlink_to(elsewhere / "made here" if role == "lock" else elsewhere)
    if role == "old":
        settle(place)
        assert not place.beside("old").is_symlink()
    else:
        with pytest.raises(OSError, match="symbolic link"):
            write(place, "new")
    assert [path.name for path in elsewhere.iterdir()] == [INDEX]
    assert (elsewhere / INDEX).read_text() == "somebody's"


def test_link_in_the_place_of_the_target_is_replaced_and_not_followed(
    place: Place, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / INDEX).write_text("somebody's")
    place.target.symlink_to(elsewhere)
    write(place, "new")
    assert not place.target.is_symlink()
    assert read(place) == "new"
    assert (elsewhere / INDEX).read_text() == "somebody's"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "made"]
