"""Folders and files that are replaced as a whole; for faults see tests/hostile/test_faults.py."""

from pathlib import Path

import pytest

from ortolan.staging import Place, placed, settle, staged

INDEX = "index.json"


def write(place: Place, contents: str) -> None:
    with staged(place) as folder:
        (folder / INDEX).write_text(contents)


def read(place: Place) -> str:
    return (place.target / INDEX).read_text()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "target", index=INDEX, name="making")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder of another owner."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / INDEX).write_text("someone else's")
    return folder


def test_a_folder_replaces_the_old_one_and_clears_leftovers_of_another_target(
    place: Place, tmp_path: Path
) -> None:
    write(place, "old")
    (tmp_path / ".making.new").mkdir()
    (tmp_path / ".making.new" / "half").touch()
    write(place, "new")
    assert read(place) == "new"
    assert names(tmp_path) == ["target"]


def test_one_name_keeps_two_targets_apart_in_time(place: Place, tmp_path: Path) -> None:
    other = Place(tmp_path / "other", index=INDEX, name="making")
    with staged(place) as folder:
        assert folder == tmp_path / ".making.new"
        with pytest.raises(BlockingIOError), staged(other):
            pass
        (folder / INDEX).touch()
    write(other, "later")
    assert read(other) == "later"


def test_the_folder_that_a_killed_process_was_replacing_comes_back(place: Place) -> None:
    write(place, "old")
    place.target.rename(place.sibling("old"))
    settle(place)
    assert read(place) == "old"
    assert names(place.target.parent) == ["target"]


@pytest.mark.parametrize("role", ["new", "old", "lock", "target"])
def test_no_link_is_followed(role: str, place: Place, elsewhere: Path) -> None:
    link = place.target if role == "target" else place.sibling(role)
    link.symlink_to(elsewhere / "new" if role == "lock" else elsewhere)
    if role == "lock":
        with pytest.raises(OSError, match="symbolic link"):
            write(place, "new")
    else:
        write(place, "new")
        assert not link.is_symlink()
        assert read(place) == "new"
    assert names(elsewhere) == [INDEX]
    assert (elsewhere / INDEX).read_text() == "someone else's"


# --- single files -----------------------------------------------------------------------------


def place_files(folder: Path, contents: dict[str, str], *, owned: tuple[str, ...] = ()) -> None:
    with placed(folder, index=INDEX, owned=owned) as new:
        for name, text in contents.items():
            (new / name).parent.mkdir(exist_ok=True)
            (new / name).write_text(text)


def contents_of(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {f"{path.relative_to(folder)}": path.read_text() for path in files}


def test_placed_files_replace_changed_files_of_the_same_names_only(tmp_path: Path) -> None:
    place_files(tmp_path, {INDEX: "old", "a": "old", "within/b": "old", "same": "same"})
    (tmp_path / "notes").write_text("someone else's")
    before = (tmp_path / "same").stat().st_ino
    place_files(tmp_path, {INDEX: "new", "within/b": "new", "same": "same"})
    expected = {INDEX: "new", "a": "old", "within/b": "new", "same": "same"}
    assert contents_of(tmp_path) == expected | {"notes": "someone else's"}
    assert (tmp_path / "same").stat().st_ino == before


def test_an_unchanged_index_is_not_replaced_and_owned_files_that_are_not_written_go(
    tmp_path: Path,
) -> None:
    place_files(tmp_path, {INDEX: "same", "a": "same", "owned": "old"}, owned=("owned",))
    before = (tmp_path / INDEX).stat().st_ino
    place_files(tmp_path, {INDEX: "same", "a": "same"}, owned=("owned",))
    assert contents_of(tmp_path) == {INDEX: "same", "a": "same"}
    assert (tmp_path / INDEX).stat().st_ino == before


def test_files_of_a_failed_block_are_not_placed(tmp_path: Path) -> None:
    place_files(tmp_path, {INDEX: "old"})
    with pytest.raises(TypeError):
        place_files(tmp_path, {INDEX: "new", "a": None})  # type: ignore[dict-item]
    assert contents_of(tmp_path) == {INDEX: "old"}


def test_second_process_may_not_place_files_at_the_same_time(tmp_path: Path) -> None:
    with placed(tmp_path, index="i"), pytest.raises(BlockingIOError), placed(tmp_path, index="i"):
        pass
