import hashlib
import io
import os
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
from tests.runtime.tiny_decoder import PROBES, TOP_K, VOCABULARY, TinyDecoder, write_bundle

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.manifest import File
from ortolan.runtime.bundle.manifest_file import encode
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.errors import CertificateError
from ortolan.runtime.verification.certificate import Certificate, Logits
from ortolan.runtime.verification.certificate_files import (
    ARRAYS_NAME,
    JSON_NAME,
    read_certificate,
    write_certificate,
)
from ortolan.runtime.verification.replay import replay

TOTAL = sum(PROBES)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyDecoder:
    return write_bundle(tmp_path_factory.mktemp("certificate") / "bundle")


@pytest.fixture(scope="module")
def certificate(tiny: TinyDecoder) -> Certificate:
    return read_certificate(open_bundle(tiny.path))


def test_what_is_written_is_read_and_written_again(
    tiny: TinyDecoder, certificate: Certificate, tmp_path: Path
) -> None:
    measured = replay(Engine(open_bundle(tiny.path)), certificate)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write_certificate(tmp_path / folder, replace(certificate, measured=measured))
    for name in (JSON_NAME, ARRAYS_NAME):
        one, two = ((tmp_path / folder / name).read_bytes() for folder in ("one", "two"))
        assert one == two
    again = read_certificate(rewritten(tiny, tmp_path, replace(certificate, measured=measured)))
    assert again.measured == msgspec.structs.replace(measured, seconds=0.0)
    assert again.probes == certificate.probes
    assert again.thresholds == certificate.thresholds
    np.testing.assert_array_equal(again.token_ids, certificate.token_ids)
    for name in ("top_ids", "top_logits", "log_sum_exp", "next_logits"):
        np.testing.assert_array_equal(
            getattr(again.reference, name), getattr(certificate.reference, name)
        )


def rewritten(
    tiny: TinyDecoder,
    folder: Path,
    certificate: Certificate | None = None,
    *,
    document: bytes | None = None,
    arrays: bytes | None = None,
) -> Bundle:
    """The bundle with another certificate, and a manifest that knows it."""
    path = folder / "rewritten"
    path.mkdir()
    for file in tiny.path.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    if certificate is not None:
        write_certificate(path, certificate)
    if document is not None:
        (path / JSON_NAME).write_bytes(document)
    if arrays is not None:
        (path / ARRAYS_NAME).write_bytes(arrays)
    manifest = open_bundle(tiny.path).manifest
    files = tuple(described(path / file.name) for file in manifest.files)
    (path / "manifest.json").write_bytes(encode(msgspec.structs.replace(manifest, files=files)))
    return open_bundle(path)


def described(path: Path) -> File:
    data = path.read_bytes()
    return File(name=path.name, size=len(data), sha256=hashlib.sha256(data).hexdigest())


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
        (("thresholds", "mean_kl"), None),
        (("measured",), {}),
    ],
)
def test_a_document_that_does_not_fit_is_refused(
    tiny: TinyDecoder, tmp_path: Path, path: tuple[str | int, ...], value: object
) -> None:
    document = msgspec.json.decode((tiny.path / JSON_NAME).read_bytes())
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    bundle = rewritten(tiny, tmp_path, document=msgspec.json.encode(document))
    with pytest.raises(CertificateError, match="certificate: expected"):
        read_certificate(bundle)


def test_a_certificate_of_an_earlier_version_says_to_export_again(
    tiny: TinyDecoder, tmp_path: Path
) -> None:
    bundle = rewritten(tiny, tmp_path, document=b'{"schema": 1, "probes": []}')
    with pytest.raises(CertificateError, match=r"got 1.*export the checkpoint again"):
        read_certificate(bundle)


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_document_that_is_none_is_refused(
    tiny: TinyDecoder, tmp_path: Path, document: bytes
) -> None:
    bundle = rewritten(tiny, tmp_path, document=document)
    with pytest.raises(CertificateError, match=r"certificate\.json"):
        read_certificate(bundle)


def logits_of(certificate: Certificate) -> Logits:
    assert isinstance(certificate.reference, Logits)
    return certificate.reference


def packed(certificate: Certificate, **changes: NDArray[Any] | None) -> dict[str, NDArray[Any]]:
    reference = logits_of(certificate)
    assert reference.next_logits is not None
    arrays: dict[str, NDArray[Any]] = {
        "token_ids": certificate.token_ids,
        "lengths": np.array(PROBES, np.int32),
        "weight_sums": certificate.weights.sums,
        "weight_sizes": certificate.weights.sizes,
        "top_ids": reference.top_ids,
        "top_logits": reference.top_logits,
        "log_sum_exp": reference.log_sum_exp,
        "next_logits": reference.next_logits,
    }
    changed = {**arrays, **changes}
    return {name: array for name, array in changed.items() if array is not None}


def saved(save: Callable[..., None], arrays: dict[str, NDArray[Any]]) -> bytes:
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
def test_arrays_that_do_not_fit_are_refused(
    tiny: TinyDecoder, certificate: Certificate, tmp_path: Path, changes: dict[str, Any]
) -> None:
    arrays = saved(np.savez, packed(certificate, **changes))
    with pytest.raises(CertificateError, match="certificate: expected"):
        read_certificate(rewritten(tiny, tmp_path, arrays=arrays))


class Trap:
    """Runs when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("unpickled",)


def test_a_pickle_is_not_opened(
    tiny: TinyDecoder,
    certificate: Certificate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    trap = np.array([Trap()] * 3, object)
    arrays = saved(np.savez, packed(certificate, lengths=trap))
    with pytest.raises(CertificateError, match="lengths as int32"):
        read_certificate(rewritten(tiny, tmp_path, arrays=arrays))
    assert not (tmp_path / "unpickled").exists()


def test_compressed_arrays_are_refused(
    tiny: TinyDecoder, certificate: Certificate, tmp_path: Path
) -> None:
    arrays = saved(np.savez_compressed, packed(certificate))
    with pytest.raises(CertificateError, match="not compressed"):
        read_certificate(rewritten(tiny, tmp_path, arrays=arrays))


def test_a_header_that_promises_more_than_there_is_takes_no_memory(
    tiny: TinyDecoder, certificate: Certificate, tmp_path: Path
) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in packed(certificate).items():
            body = io.BytesIO()
            np.lib.format.write_array(body, array)
            text = body.getvalue()
            if name == "lengths":
                text = text.replace(b"(3,), }" + b" " * 15, b"(3000000000000000,), }")
                assert b"3000000000000000" in text
            archive.writestr(f"{name}.npy", text)
    with pytest.raises(CertificateError, match="lengths as int32"):
        read_certificate(rewritten(tiny, tmp_path, arrays=stream.getvalue()))


@pytest.mark.parametrize("text", [b"\0", b"[", b"(" * 12, b"'", b"9" * 12, b"\xff", b"\\\n"])
def test_a_header_that_python_cannot_parse_is_refused(
    tiny: TinyDecoder, certificate: Certificate, tmp_path: Path, text: bytes
) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in packed(certificate).items():
            body = io.BytesIO()
            np.lib.format.write_array(body, array)
            good = body.getvalue()
            place = good.index(b"'shape': ") + len(b"'shape': ")
            archive.writestr(f"{name}.npy", good[:place] + text + good[place + len(text) :])
    with pytest.raises(CertificateError, match=" as "):
        read_certificate(rewritten(tiny, tmp_path, arrays=stream.getvalue()))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_damaged_archive_is_refused_or_read_as_it_was(
    tmp_path_factory: pytest.TempPathFactory,
    tiny: TinyDecoder,
    certificate: Certificate,
    data: st.DataObject,
) -> None:
    arrays = bytearray(saved(np.savez, packed(certificate)))
    for _ in range(data.draw(st.integers(1, 4))):
        arrays[data.draw(st.integers(0, len(arrays) - 1))] = data.draw(st.integers(0, 255))
    bundle = rewritten(tiny, tmp_path_factory.mktemp("damaged"), arrays=bytes(arrays))
    try:
        again = read_certificate(bundle)
    except CertificateError:
        return
    np.testing.assert_array_equal(logits_of(again).top_logits, logits_of(certificate).top_logits)


def test_parts_that_do_not_agree_are_not_written(certificate: Certificate, tmp_path: Path) -> None:
    reference = logits_of(certificate)
    short = replace(certificate, reference=replace(reference, top_ids=reference.top_ids[:-1]))
    with pytest.raises(CertificateError, match="top_ids as int32"):
        write_certificate(tmp_path, short)
    assert list(tmp_path.iterdir()) == []
