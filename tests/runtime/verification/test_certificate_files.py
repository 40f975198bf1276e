"""Certificates in files: what is read, and every kind of file that is refused."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.bundle.manifests import rows
from tests.runtime.damaged_bundles import edit_json, reseal
from tests.runtime.tiny_decoder import PROBES, TOP_K, VOCABULARY, TinyDecoder
from tests.runtime.verification import certified_encoders
from tests.runtime.verification.certified_encoders import LENGTHS

from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.errors import CertificateError
from ortolan.runtime.verification.certificate import Certificate
from ortolan.runtime.verification.certificate_arrays import pack
from ortolan.runtime.verification.certificate_files import (
    ARRAYS_NAME,
    JSON_NAME,
    read_certificate,
    write_certificate,
)
from ortolan.runtime.verification.replay import replay

TOTAL = sum(PROBES)

Arrays = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def original(tiny: TinyDecoder, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns a certified bundle: a decoder, or an encoder by its output, or of images."""

    @cache
    def folder(kind: str) -> Path:
        if kind == "decoder":
            return tiny.path
        path = tmp_path_factory.mktemp("certified") / kind
        is_image = kind == "images"
        certified_encoders.write_bundle(path, "labels" if is_image else kind, is_image=is_image)
        return path

    return folder


@pytest.fixture
def copied(original: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """Returns a copy of a certified bundle."""
    return lambda kind: Path(shutil.copytree(original(kind), tmp_path / "copy"))


def read(folder: Path) -> Certificate:
    reseal(folder)
    return read_certificate(open_bundle(folder))


def arrays_of(folder: Path) -> Arrays:
    """The arrays of a certificate where its list says that they are."""
    data = (folder / ARRAYS_NAME).read_bytes()
    arrays = {}
    for place in msgspec.json.decode((folder / JSON_NAME).read_bytes())["arrays"]:
        count, dtype = int(np.prod(place["shape"])), np.dtype(place["dtype"]).newbyteorder("<")
        values = np.frombuffer(data, dtype, count, place["offset"])
        arrays[place["name"]] = values.reshape(place["shape"])
    return arrays


def test_a_written_certificate_is_read_and_written_again(
    tiny: TinyDecoder,
    certificate: Certificate,
    copied: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    folder = copied("decoder")
    measured = replay(Engine(open_bundle(tiny.path)), certificate)
    complete = replace(certificate, measured=measured)
    for path in (tmp_path, folder):
        write_certificate(path, complete)
    for name in (JSON_NAME, ARRAYS_NAME):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    again = read(folder)
    assert again.measured == msgspec.structs.replace(measured, seconds=0.0)
    assert (again.probes, again.thresholds) == (certificate.probes, certificate.thresholds)
    arrays = arrays_of(folder)
    np.testing.assert_array_equal(again.token_ids, certificate.token_ids)
    np.testing.assert_array_equal(arrays["token_ids"], certificate.token_ids)
    for name in ("top_ids", "top_logits", "log_sum_exp", "next_logits"):
        for got in (getattr(again.reference, name), arrays[name]):
            np.testing.assert_array_equal(got, getattr(certificate.reference, name))


# --- documents that are refused ---------------------------------------------------------------

DOCUMENTS = {
    "decoder": rows(
        {
            "schema": [2],
            "outputs.head": [1000],
            "top_k": [TOP_K + 1],
            "probes.0.length": [6],
            "probes.2.length": [2_000_000],
            "thresholds.mean_kl": [None],
            "arrays.3.name": ["lengths2"],
            "arrays.3.dtype": ["float32"],
            "arrays.3.shape": [[TOTAL + 1]],
            "arrays.3.offset": [4],
        }
    ),
    "states": rows(
        {
            "kind": ["decoder"],
            "width": [9, None],
            "top_k": [3],
            "thresholds.mean_cosine": [None],
            "thresholds.mean_kl": [1.0],
            "probes.0.source": [4],
            "probes.3.length": [25],
        }
    ),
    "labels": rows(
        {
            "top_k": [None],
            "thresholds.mean_kl": [None],
        }
    ),
    "images": rows({"arrays.3.shape": [[4, 5, 6, 3]]}),
}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, edits in DOCUMENTS.items() for name in edits]
)
def test_a_wrong_document_is_refused(
    copied: Callable[[str], Path], kind: str, name: str, snapshot: SnapshotAssertion
) -> None:
    folder = copied(kind)
    edit_json(folder, JSON_NAME, DOCUMENTS[kind][name])
    assert refusal(partial(read, folder)) == snapshot


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_invalid_json_is_refused(copied: Callable[[str], Path], document: bytes) -> None:
    folder = copied("decoder")
    (folder / JSON_NAME).write_bytes(document)
    with pytest.raises(CertificateError, match=JSON_NAME):
        read(folder)


# --- arrays that are refused ------------------------------------------------------------------


def filled(shape: tuple[int, ...], value: float, dtype: type = np.int32) -> NDArray[Any]:
    return np.full(shape, value, dtype)


ROWS = sum(LENGTHS)

ARRAYS: dict[str, dict[str, dict[str, NDArray[Any] | None]]] = {
    "decoder": {
        "no ids": {"token_ids": None},
        "a surplus": {"surplus": np.zeros(1)},
        "ids of fewer tokens": {"token_ids": filled((TOTAL - 1,), 0)},
        "long ids": {"token_ids": filled((TOTAL,), 0, np.int64)},
        "ids beyond the vocabulary": {"token_ids": filled((TOTAL,), VOCABULARY)},
        "negative ids": {"token_ids": filled((TOTAL,), -1)},
        "likely ids beyond it": {"top_ids": filled((TOTAL, TOP_K), VOCABULARY)},
        "fewer likely ids": {"top_ids": filled((TOTAL, TOP_K - 1), 0)},
        "NaN": {"top_logits": filled((TOTAL, TOP_K), np.nan, np.float32)},
        "double": {"top_logits": filled((TOTAL, TOP_K), 0, np.float64)},
        "infinite": {"log_sum_exp": filled((TOTAL,), np.inf, np.float32)},
        "NaN of the next id": {"next_logits": filled((TOTAL,), np.nan, np.float32)},
        "other lengths": {"lengths": np.array(PROBES[::-1], np.int32)},
        "lengths in another byte order": {"lengths": np.array(PROBES, np.int32).byteswap()},
    },
    "states": {
        "NaN": {"values": filled((ROWS, 8), np.nan, np.float32)},
        "double": {"values": np.zeros((ROWS, 8))},
        "fewer rows": {"values": np.zeros((ROWS - 1, 8), np.float32)},
        "no ids": {"token_ids": None},
        "ids of a source": {"source_ids": np.zeros(3, np.int32)},
        "ids beyond the vocabulary": {"token_ids": filled((ROWS,), 16)},
    },
    "labels": {
        "labels beyond the third": {"top_ids": filled((4, 3), 3)},
        "logits of the next id": {"next_logits": np.zeros(4, np.float32)},
    },
    "images": {
        "no images": {"images": None},
        "higher images": {"images": np.zeros((4, 5, 6, 3), np.uint8)},
        "images in floats": {"images": np.zeros((4, 4, 6, 3), np.float32)},
        "ids": {"token_ids": np.zeros(4, np.int32)},
    },
}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, changes in ARRAYS.items() for name in changes]
)
def test_wrong_arrays_are_refused(copied: Callable[[str], Path], kind: str, name: str) -> None:
    folder = copied(kind)
    changed = arrays_of(folder) | ARRAYS[kind][name]
    kept = {name: array for name, array in changed.items() if array is not None}
    (folder / ARRAYS_NAME).write_bytes(pack(kept))
    with pytest.raises(CertificateError):
        read(folder)
