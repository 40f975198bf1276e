import shutil
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
        (("schema",), 4),
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
    message = refusal(folder, JSON_NAME, b'{"schema": 2, "probes": []}')
    assert "schema 2" in message
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


def saved(arrays: Arrays) -> bytes:
    """The arrays one after another, as they are."""
    return b"".join(array.tobytes() for array in arrays.values())


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
        {"top_logits": filled((TOTAL, TOP_K), np.nan, np.float32)},
        {"top_logits": filled((TOTAL, TOP_K), 0, np.float64)},
        {"log_sum_exp": filled((TOTAL,), np.inf, np.float32)},
        {"next_logits": filled((TOTAL,), np.nan, np.float32)},
        {"lengths": np.array(PROBES[::-1], np.int32)},
        {"lengths": np.array(PROBES, ">i4")},
    ],
)
def test_wrong_arrays_are_refused(
    folder: Path, certificate: Certificate, changes: dict[str, Any]
) -> None:
    places = msgspec.json.decode((folder / JSON_NAME).read_bytes())["arrays"]
    arrays = arrays_of(certificate, **changes)
    names = [place["name"] for place in places] + ["surplus"]
    data = saved({name: arrays[name] for name in names if name in arrays})
    refusal(folder, ARRAYS_NAME, data)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "lengths2"),
        ("dtype", "float32"),
        ("dtype", "object"),
        ("shape", [TOTAL + 1]),
        ("shape", [3_000_000_000_000_000]),
        ("shape", [-1]),
        ("offset", 4),
        ("offset", -4),
    ],
)
def test_a_list_of_other_arrays_is_refused(folder: Path, field: str, value: object) -> None:
    edit_json(folder, JSON_NAME, put("arrays", 3, field, value=value))
    with pytest.raises(CertificateError):
        read_certificate(open_bundle(folder))


def test_the_list_says_where_the_arrays_are(folder: Path, certificate: Certificate) -> None:
    data, expected = (folder / ARRAYS_NAME).read_bytes(), arrays_of(certificate)
    places = msgspec.json.decode((folder / JSON_NAME).read_bytes())["arrays"]
    assert {place["name"] for place in places} == set(expected)
    for place in places:
        count, dtype = int(np.prod(place["shape"])), np.dtype(place["dtype"]).newbyteorder("<")
        got = np.frombuffer(data, dtype, count, place["offset"]).reshape(place["shape"])
        np.testing.assert_array_equal(got, expected[place["name"]])


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_damaged_arrays_are_refused_or_numbers_of_the_same_shapes(
    tmp_path_factory: pytest.TempPathFactory,
    tiny: TinyDecoder,
    certificate: Certificate,
    data: st.DataObject,
) -> None:
    folder = Path(shutil.copytree(tiny.path, tmp_path_factory.mktemp("damaged") / "copy"))
    arrays = bytearray((folder / ARRAYS_NAME).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        arrays[data.draw(st.integers(0, len(arrays) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([None, -1, 0, 7]))
    try:
        again = read_with(folder, ARRAYS_NAME, bytes(arrays[:cut]))
    except CertificateError:
        return
    assert logits_of(again).top_logits.shape == logits_of(certificate).top_logits.shape


def test_inconsistent_parts_are_not_written(certificate: Certificate, tmp_path: Path) -> None:
    reference = logits_of(certificate)
    short = replace(certificate, reference=replace(reference, top_ids=reference.top_ids[:-1]))
    with pytest.raises(CertificateError, match="top_ids"):
        write_certificate(tmp_path, short)
    assert list(tmp_path.iterdir()) == []
