import os
import shutil
from pathlib import Path

import msgspec
import pytest
from tests.runtime import tiny_decoder
from tests.runtime.isolation.stand_ins import replace_step

from ortolan.runtime import FirstLoadError, load, open_bundle, verify
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.manifest_file import encode
from ortolan.runtime.engine.ort_session import onnxruntime_version
from ortolan.runtime.isolation import verified
from ortolan.runtime.isolation.verified import is_verified, marks, remember

VERSION = onnxruntime_version()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_decoder.write_bundle(tmp_path_factory.mktemp("verified") / "bundle").path


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Bundle:
    return open_bundle(shutil.copytree(original, tmp_path / "bundle"))


@pytest.fixture
def known(bundle: Bundle) -> Bundle:
    """A bundle that is remembered."""
    remember(bundle, marks(bundle.path), onnxruntime=VERSION)
    assert is_verified(bundle, onnxruntime=VERSION)
    return bundle


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def test_a_bundle_that_passed_needs_no_process_any_more(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verify(bundle.path, exact=False).verdict == "PASS"
    replace_step(monkeypatch, "import os; os.abort()")
    load(bundle.path, isolate=True)
    assert verify(bundle.path, exact=False).verdict == "PASS"


def test_a_bundle_is_verified_after_a_first_load_apart(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_step(monkeypatch, "import os; os.abort()")
    with pytest.raises(FirstLoadError):
        verify(bundle.path, exact=False)
    assert not is_verified(bundle, onnxruntime=VERSION)
    assert verify(bundle.path, exact=False, isolate=False).verdict == "PASS"
    assert not is_verified(bundle, onnxruntime=VERSION)


def test_what_fails_is_not_remembered(tmp_path: Path) -> None:
    path = tiny_decoder.write_bundle(tmp_path / "poisoned", poisoned=3).path
    assert verify(path, exact=False).verdict == "FAIL"
    assert not is_verified(open_bundle(path), onnxruntime=VERSION)


def test_changed_weights_are_unverified(known: Bundle) -> None:
    flip(known.file(known.manifest.weights[0]))
    assert not is_verified(open_bundle(known.path), onnxruntime=VERSION)


def test_a_changed_manifest_is_unverified(known: Bundle) -> None:
    manifest = msgspec.structs.replace(known.manifest, context_length=64)
    (known.path / "manifest.json").write_bytes(encode(manifest))
    assert not is_verified(open_bundle(known.path), onnxruntime=VERSION)


def test_weights_are_read_again_only_where_the_file_system_saw_a_change(
    known: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = open_bundle(shutil.copytree(known.path, tmp_path / "copy"))
    os.utime(known.file(known.manifest.weights[0]))
    for each in (known, copy):
        assert is_verified(each, onnxruntime=VERSION)
    monkeypatch.setattr(verified, "check_file", None)
    assert is_verified(copy, onnxruntime=VERSION)


def test_another_onnxruntime_or_processor_is_unverified(
    known: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_verified(known, onnxruntime="1.0.0")
    monkeypatch.setattr(verified, "processor_features", lambda: ("abacus",))
    assert not is_verified(known, onnxruntime=VERSION)


def test_files_that_appeared_while_they_were_read_are_not_remembered(bundle: Bundle) -> None:
    seen = dict(marks(bundle.path))
    del seen[bundle.manifest.weights[0]]
    remember(bundle, seen, onnxruntime=VERSION)
    assert not is_verified(bundle, onnxruntime=VERSION)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"onnxruntime": 1}'])
def test_a_damaged_record_counts_as_none(content: bytes, known: Bundle, state: Path) -> None:
    (record,) = (state / "ortolan" / "verified").iterdir()
    record.write_bytes(content)
    assert not is_verified(known, onnxruntime=VERSION)


def test_records_are_the_user_s_alone(known: Bundle, state: Path) -> None:
    (record,) = (state / "ortolan" / "verified").iterdir()
    assert known.path.is_dir()
    assert record.parent.stat().st_mode & 0o777 == 0o700


def test_a_state_folder_that_cannot_be_written_makes_nothing_fail(
    bundle: Bundle, state: Path
) -> None:
    state.write_text("a file, not a folder")
    assert verify(bundle.path, exact=False).verdict == "PASS"
    assert not is_verified(bundle, onnxruntime=VERSION)
    load(bundle.path, isolate=True)
