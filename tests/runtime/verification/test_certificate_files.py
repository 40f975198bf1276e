import io
import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.runtime.damaged_bundles import edit_json, put, reseal
from tests.runtime.tiny_decoder import PROBES, TOP_K, VOCABULARY, TinyDecoder
from tests.runtime.verification.conftest import logits_of

from ortolan.runtime import limits
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.errors import CertificateError
from ortolan.runtime.verification.certificate import Certificate
from ortolan.runtime.verification.certificate_files import (
    ARRAYS_NAME,
    JSON_NAME,
    read_certificate,
    write_certificate,
)
from ortolan.runtime.verification.replay import replay

TOTAL = sum(PROBES)

Arrays = dict[str, NDArray[Any]]


@pytest.fixture
def folder(tiny: TinyDecoder, tmp_path: Path) -> Path:
    """A copy of the tiny bundle."""
    return Path(shutil.copytree(tiny.path, tmp_path / "copy"))


def read_with(folder: Path, name: str, data: bytes) -> Certificate:
    """Replace a file of the certificate and read it."""
    (folder / name).write_bytes(data)
    reseal(folder)
    return read_certificate(open_bundle(folder))


def refusal(folder: Path, name: str, data: bytes) -> str:
    with pytest.raises(CertificateError) as caught:
        read_with(folder, name, data)
    return str(caught.value)


def test_a_written_certificate_is_read_and_written_again(
    tiny: TinyDecoder, certificate: Certificate, folder: Path, tmp_path: Path
) -> None:
    measured = replay(Engine(open_bundle(tiny.path)), certificate)
    complete = replace(certificate, measured=measured)
    for path in (tmp_path, folder):
        write_certificate(path, complete)
    for name in (JSON_NAME, ARRAYS_NAME):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    reseal(folder)
    again = read_certificate(open_bundle(folder))
    assert again.measured == msgspec.structs.replace(measured, seconds=0.0)
    assert (again.probes, again.thresholds) == (certificate.probes, certificate.thresholds)
    np.testing.assert_array_equal(again.token_ids, certificate.token_ids)
    for name in ("top_ids", "top_logits", "log_sum_exp", "next_logits"):
        np.testing.assert_array_equal(
            getattr(again.reference, name), getattr(certificate.reference, name)
        )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), 3),
        (("outputs", "head"), 1000),
        (("stored", "0.norm"), "0"),
        (("top_k",), 1),
        (("top_k",), TOP_K + 1),
        (("surplus",), 1),
        (("probes",), []),
        (("probes", 0, "length"), 6),
        (("probes", 0, "length"), 0),
        (("probes", 2, "length"), 2_000_000),
        (("thresholds", "max_abs_delta"), 0),
        (("thresholds", "max_abs_delta"), 1.01),
        (("thresholds", "mean_kl"), None),
        (("thresholds", "mean_kl"), limits.MAX_MEAN_KL * 1.01),
        (("thresholds", "mean_cosine"), limits.MAX_COSINE_DISTANCE * 1.01),
        (("thresholds", "near_tie"), 1.01),
        (("measured",), {}),
    ],
)
def test_a_wrong_document_is_refused(
    folder: Path, path: tuple[str | int, ...], value: object
) -> None:
    edit_json(folder, JSON_NAME, put(*path, value=value))
    with pytest.raises(CertificateError):
        read_certificate(open_bundle(folder))


def test_an_earlier_schema_says_to_export_again(folder: Path) -> None:
    message = refusal(folder, JSON_NAME, b'{"schema": 1, "probes": []}')
    assert "schema 1" in message
    assert "export" in message


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_invalid_json_is_refused(folder: Path, document: bytes) -> None:
    assert JSON_NAME in refusal(folder, JSON_NAME, document)


def arrays_of(certificate: Certificate, **changes: NDArray[Any] | None) -> Arrays:
    reference = logits_of(certificate)
    arrays = {
        "token_ids": certificate.token_ids,
        "lengths": np.array(PROBES, np.int32),
        "weight_sums": certificate.weights.sums,
        "weight_sizes": certificate.weights.sizes,
        "top_ids": reference.top_ids,
        "top_logits": reference.top_logits,
        "log_sum_exp": reference.log_sum_exp,
        "next_logits": reference.next_logits,
        **changes,
    }
    return {name: array for name, array in arrays.items() if array is not None}


def saved(save: Callable[..., None], arrays: Arrays) -> bytes:
    stream = io.BytesIO()
    save(stream, **arrays)
    return stream.getvalue()


def filled(shape: tuple[int, ...], value: float, dtype: type = np.int32) -> NDArray[Any]:
    return np.full(shape, value, dtype)


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": None},
        {"surplus": np.zeros(1)},
        {"token_ids": filled((TOTAL - 1,), 0)},
        {"token_ids": filled((TOTAL,), 0, np.int64)},
        {"token_ids": filled((TOTAL,), VOCABULARY)},
        {"token_ids": filled((TOTAL,), -1)},
        {"top_ids": filled((TOTAL, TOP_K), VOCABULARY)},
        {"top_ids": filled((TOTAL, TOP_K - 1), 0)},
        {"top_ids": np.asfortranarray(filled((TOTAL, TOP_K), 0))},
        {"top_logits": filled((TOTAL, TOP_K), np.nan, np.float32)},
        {"top_logits": filled((TOTAL, TOP_K), 0, np.float64)},
        {"log_sum_exp": filled((TOTAL,), np.inf, np.float32)},
        {"next_logits": filled((TOTAL,), np.nan, np.float32)},
        {"lengths": np.array(PROBES[::-1], np.int32)},
        {"lengths": np.array(PROBES, ">i4")},
        {"lengths": np.array([{}, {}, {}], object)},
    ],
)
def test_wrong_arrays_are_refused(
    folder: Path, certificate: Certificate, changes: dict[str, Any]
) -> None:
    refusal(folder, ARRAYS_NAME, saved(np.savez, arrays_of(certificate, **changes)))


class Trap:
    """Runs when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("unpickled",)


def test_a_pickle_is_not_opened(
    folder: Path, certificate: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arrays = saved(np.savez, arrays_of(certificate, lengths=np.array([Trap()] * 3, object)))
    assert "lengths as int32" in refusal(folder, ARRAYS_NAME, arrays)
    assert not (tmp_path / "unpickled").exists()


def test_compressed_arrays_are_refused(folder: Path, certificate: Certificate) -> None:
    arrays = saved(np.savez_compressed, arrays_of(certificate))
    assert "not compressed" in refusal(folder, ARRAYS_NAME, arrays)


def archive(arrays: Arrays, change: Callable[[str, bytes], bytes]) -> bytes:
    """Write an archive in which `change` gets the name and the contents of every file."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name, array in arrays.items():
            body = io.BytesIO()
            np.lib.format.write_array(body, array)
            file.writestr(f"{name}.npy", change(name, body.getvalue()))
    return stream.getvalue()


def test_a_header_that_promises_too_much_allocates_nothing(
    folder: Path, certificate: Certificate
) -> None:
    def promise(name: str, data: bytes) -> bytes:
        if name != "lengths":
            return data
        changed = data.replace(b"(3,), }" + b" " * 15, b"(3000000000000000,), }")
        assert changed != data
        return changed

    message = refusal(folder, ARRAYS_NAME, archive(arrays_of(certificate), promise))
    assert "lengths as int32" in message


@pytest.mark.parametrize("text", [b"\0", b"[", b"(" * 12, b"'", b"9" * 12, b"\xff", b"\\\n"])
def test_an_unreadable_header_is_refused(
    folder: Path, certificate: Certificate, text: bytes
) -> None:
    def break_shape(name: str, data: bytes) -> bytes:
        place = data.index(b"'shape': ") + len(b"'shape': ")
        return data[:place] + text + data[place + len(text) :]

    assert " as " in refusal(folder, ARRAYS_NAME, archive(arrays_of(certificate), break_shape))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_damaged_archive_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory,
    tiny: TinyDecoder,
    certificate: Certificate,
    data: st.DataObject,
) -> None:
    arrays = bytearray(saved(np.savez, arrays_of(certificate)))
    for _ in range(data.draw(st.integers(1, 4))):
        arrays[data.draw(st.integers(0, len(arrays) - 1))] = data.draw(st.integers(0, 255))
    folder = Path(shutil.copytree(tiny.path, tmp_path_factory.mktemp("damaged") / "copy"))
    try:
        again = read_with(folder, ARRAYS_NAME, bytes(arrays))
    except CertificateError:
        return
    np.testing.assert_array_equal(logits_of(again).top_logits, logits_of(certificate).top_logits)


def test_inconsistent_parts_are_not_written(certificate: Certificate, tmp_path: Path) -> None:
    reference = logits_of(certificate)
    short = replace(certificate, reference=replace(reference, top_ids=reference.top_ids[:-1]))
    with pytest.raises(CertificateError, match="top_ids"):
        write_certificate(tmp_path, short)
    assert list(tmp_path.iterdir()) == []
