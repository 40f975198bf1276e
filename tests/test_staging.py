"""What export and pack do not test themselves; for faults see tests/hostile/test_faults.py."""

from pathlib import Path

import pytest

from ortolan.staging import BusyError, Place, placed, settle, staged

INDEX = "index.json"


def write(place: Place, contents: str) -> None:
    with staged(place) as folder:
        (folder / INDEX).write_text(contents)


def read(place: Place) -> str:
    return (place.target / INDEX).read_text()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "target", index=INDEX, name="making")


def test_folder_replaces_the_one_before_it_and_leaves_nothing_else(place: Place) -> None:
    write(place, "old")
    write(place, "new")
    assert read(place) == "new"
    assert [path.name for path in place.target.parent.iterdir()] == ["target"]


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
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_the_folder_that_a_killed_process_was_replacing_comes_back(place: Place) -> None:
    write(place, "old")
    place.target.rename(place.sibling("old"))
    settle(place)
    assert read(place) == "old"
    assert [path.name for path in place.target.parent.iterdir()] == ["target"]


@pytest.mark.parametrize("role", ["new", "old", "lock"])
def test_no_link_is_followed(role: str, place: Place, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / INDEX).write_text("someone else's")
    place.sibling(role).symlink_to(elsewhere / "new" if role == "lock" else elsewhere)
    if role == "lock":
        with pytest.raises(OSError, match="symbolic link"):
            write(place, "new")
    else:
        write(place, "new")
        assert not place.sibling(role).is_symlink()
    assert [path.name for path in elsewhere.iterdir()] == [INDEX]
    assert (elsewhere / INDEX).read_text() == "someone else's"


def test_link_in_the_place_of_the_target_is_replaced_and_not_followed(
    place: Place, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / INDEX).write_text("someone else's")
    place.target.symlink_to(elsewhere)
    write(place, "new")
    assert not place.target.is_symlink()
    assert read(place) == "new"
    assert (elsewhere / INDEX).read_text() == "someone else's"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "target"]


def place_files(folder: Path, contents: dict[str, str], *, owned: tuple[str, ...] = ()) -> None:
    with placed(folder, index=INDEX, owned=owned) as new:
        for name, text in contents.items():
            (new / name).parent.mkdir(exist_ok=True)
            (new / name).write_text(text)


def contents_of(folder: Path) -> dict[str, str]:
    return {
        f"{path.relative_to(folder)}": path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_placed_files_replace_files_of_the_same_names_only(tmp_path: Path) -> None:
    place_files(tmp_path, {INDEX: "old", "a": "old", "within/b": "old"})
    (tmp_path / "notes").write_text("someone else's")
    place_files(tmp_path, {INDEX: "new", "within/b": "new"})
    assert contents_of(tmp_path) == {
        INDEX: "new",
        "a": "old",
        "within/b": "new",
        "notes": "someone else's",
    }


def test_owned_files_that_are_not_written_are_removed(tmp_path: Path) -> None:
    place_files(tmp_path, {INDEX: "same", "a": "same", "owned": "old"}, owned=("owned",))
    place_files(tmp_path, {INDEX: "same", "a": "same"}, owned=("owned",))
    assert contents_of(tmp_path) == {INDEX: "same", "a": "same"}


def test_unchanged_files_are_not_replaced(tmp_path: Path) -> None:
    place_files(tmp_path, {INDEX: "same", "a": "same", "b": "old"})
    before = {name: (tmp_path / name).stat().st_ino for name in (INDEX, "a")}
    place_files(tmp_path, {INDEX: "same", "a": "same", "b": "new"})
    assert {name: (tmp_path / name).stat().st_ino for name in before} == before
    assert contents_of(tmp_path)["b"] == "new"


def test_files_of_a_failed_block_are_not_placed(tmp_path: Path) -> None:
    place_files(tmp_path, {INDEX: "old"})
    with pytest.raises(TypeError):
        place_files(tmp_path, {INDEX: "new", "a": None})  # type: ignore[dict-item]
    assert contents_of(tmp_path) == {INDEX: "old"}


def test_second_process_may_not_place_files_at_the_same_time(tmp_path: Path) -> None:
    with placed(tmp_path, index=INDEX), pytest.raises(BusyError), placed(tmp_path, index=INDEX):
        pass
