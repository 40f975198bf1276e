import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.runtime import tiny_decoder

from ortolan.runtime import FirstLoadError, load, open_bundle, verify
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.manifest_file import encode
from ortolan.runtime.engine.providers import onnxruntime_version
from ortolan.runtime.verification import verified
from ortolan.runtime.verification.verified import is_verified, remember, stamps

VERSION = onnxruntime_version()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_decoder.write_bundle(tmp_path_factory.mktemp("verified") / "bundle").path


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Bundle:
    return open_bundle(shutil.copytree(original, tmp_path / "bundle"))


@pytest.fixture
def remembered(bundle: Bundle) -> Bundle:
    remember(bundle, stamps(bundle.path), onnxruntime=VERSION)
    assert is_verified(bundle, onnxruntime=VERSION)
    return bundle


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def test_a_verified_bundle_needs_no_subprocess(
    bundle: Bundle, replace_step: Callable[[str], None]
) -> None:
    assert verify(bundle.path, exact=False).verdict == "PASS"
    replace_step("import os; os.abort()")
    load(bundle.path, isolate=True)
    assert verify(bundle.path, exact=False).verdict == "PASS"


def test_verify_starts_with_a_first_load(
    bundle: Bundle, replace_step: Callable[[str], None]
) -> None:
    replace_step("import os; os.abort()")
    with pytest.raises(FirstLoadError):
        verify(bundle.path, exact=False)
    assert not is_verified(bundle, onnxruntime=VERSION)
    assert verify(bundle.path, exact=False, isolate=False).verdict == "PASS"
    assert not is_verified(bundle, onnxruntime=VERSION)


def test_a_failed_bundle_is_not_remembered(tmp_path: Path) -> None:
    path = tiny_decoder.write_bundle(tmp_path / "poisoned", poisoned=3).path
    assert verify(path, exact=False).verdict == "FAIL"
    assert not is_verified(open_bundle(path), onnxruntime=VERSION)


def change_manifest(bundle: Bundle, record: Path) -> None:
    manifest = msgspec.structs.replace(bundle.manifest, context_length=64)
    (bundle.path / "manifest.json").write_bytes(encode(manifest))


def rewritten(content: bytes) -> Callable[[Bundle, Path], object]:
    return lambda bundle, record: record.write_bytes(content)


CHANGES: dict[str, Callable[[Bundle, Path], object]] = {
    "weights": lambda bundle, record: flip(bundle.file(bundle.manifest.weights[0])),
    "manifest": change_manifest,
    **{
        f"record {content!r}": rewritten(content)
        for content in (b"", b"{}", b"\xff", b'{"onnxruntime": 1}')
    },
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_bundle_or_record_is_unverified(
    remembered: Bundle, state: Path, name: str
) -> None:
    (record,) = (state / "ortolan" / "verified").iterdir()
    assert record.parent.stat().st_mode & 0o777 == 0o700
    CHANGES[name](remembered, record)
    assert not is_verified(open_bundle(remembered.path), onnxruntime=VERSION)


def test_weights_are_read_again_only_when_their_stamps_change(
    remembered: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = open_bundle(shutil.copytree(remembered.path, tmp_path / "copy"))
    os.utime(remembered.file(remembered.manifest.weights[0]))
    for copied in (remembered, copy):
        assert is_verified(copied, onnxruntime=VERSION)
    monkeypatch.setattr(verified, "check_file", None)
    assert is_verified(copy, onnxruntime=VERSION)


def test_another_onnxruntime_or_processor_is_unverified(
    remembered: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_verified(remembered, onnxruntime="1.0.0")
    monkeypatch.setattr(verified, "processor_features", lambda: ("abacus",))
    assert not is_verified(remembered, onnxruntime=VERSION)


def test_files_that_appear_during_verification_are_not_remembered(bundle: Bundle) -> None:
    before = dict(stamps(bundle.path))
    del before[bundle.manifest.weights[0]]
    remember(bundle, before, onnxruntime=VERSION)
    assert not is_verified(bundle, onnxruntime=VERSION)


def test_an_unwritable_state_folder_fails_nothing(bundle: Bundle, state: Path) -> None:
    state.write_text("a file, not a folder")
    assert verify(bundle.path, exact=False).verdict == "PASS"
    assert not is_verified(bundle, onnxruntime=VERSION)
    load(bundle.path, isolate=True)
