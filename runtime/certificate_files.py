"""certificate.json and certificate.npz: what PyTorch computed for some probes, as typed data.

Knows fields, arrays and how they must agree. Does not know how the reference was computed
(`ortolan.export.certificate`) nor how it is replayed (`ortolan.runtime.certificate`).

Per position of each probe the reference keeps the highest logits, their ids and the logarithm of
the sum of the exponentials of all: enough for probabilities, at a thousandth of the size.

Shape letters: N positions of all probes, one probe after another; K kept logits; V vocabulary.
"""

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ortolan.runtime import limits
from ortolan.runtime.bundle import Bundle
from ortolan.runtime.errors import CertificateError

__all__ = [
    "ARRAYS_NAME",
    "JSON_NAME",
    "Certificate",
    "Divergence",
    "Phase",
    "Probe",
    "Report",
    "Thresholds",
    "log_sum_exp",
    "read",
    "summarize",
    "write",
]

JSON_NAME = "certificate.json"
ARRAYS_NAME = "certificate.npz"

MAX_PROBES = 1024
"""Probes of one certificate; an export writes fewer than ten."""

_HEADER_BYTES = 1024
"""More than the header of any array here: 128 bytes."""

Label = Annotated[str, Meta(min_length=1, max_length=limits.MAX_LABEL_LENGTH)]
Length = Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)]
Positive = Annotated[float, Meta(gt=0)]
PhaseName = Literal["prefill", "decode", "chunked"]


class Probe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sequence of tokens whose logits are known. Its length is in tokens."""

    name: Label
    length: Length


class Thresholds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What still counts as the same model.

    Attributes:
        mean_kl: of the distributions, in nats, over all positions.
        max_abs_delta: of one logit, times the largest logit where that is above 1; `None` where
            rounded weights move logits, and only the divergence counts.
        near_tie: distance of the two highest logits up to which either may come first; `None`
            where any token may.
    """

    mean_kl: Positive
    max_abs_delta: Positive | None = None
    near_tie: Annotated[float, Meta(ge=0)] | None = None


class Divergence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first position that differs. Positions count from 0 within a probe."""

    probe: str
    position: int
    phase: PhaseName


class Phase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Figures of one way to compute the probes; see `Report`."""

    positions: int
    max_abs_delta: float
    mean_kl: float
    max_kl: float
    top1_agreement: float
    near_ties: int
    non_finite: int


class Report(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a bundle is from its reference.

    Attributes:
        verdict: `PASS`; `AMBIGUOUS` when only near ties changed places; `FAIL`.
        max_abs_delta: largest difference of a kept logit.
        max_abs_logit: largest magnitude of a kept logit of the reference.
        mean_kl: Kullback-Leibler divergence from the reference in nats, averaged over the
            positions. Computed over the kept logits, and all others as one: a lower bound of
            the whole.
        max_kl: the largest of one position.
        top1_agreement: share of positions with the same most probable token.
        near_ties: positions where the two most probable tokens, nearly tied, changed places.
        perplexity: of the probes' own tokens, each after those before it, by prefill.
        reference_perplexity: the same of the reference.
        non_finite: positions with a logit that is not a finite number; they count in no other
            figure but `top1_agreement`.
        first_divergence: the first position, in the order of the replay, whose most probable
            token or whose difference is not within the thresholds, near ties included.
        phases: the figures of prefill, of cached decode, and of prefill in chunks.
        onnxruntime: its version.
    """

    verdict: Literal["PASS", "AMBIGUOUS", "FAIL"]
    max_abs_delta: float
    max_abs_logit: float
    mean_kl: float
    max_kl: float
    top1_agreement: float
    near_ties: int
    perplexity: float
    reference_perplexity: float
    non_finite: int
    first_divergence: Divergence | None
    phases: dict[PhaseName, Phase]
    device: str
    onnxruntime: str
    seconds: float


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of certificate.json."""

    schema: Literal[1]
    top_k: Annotated[int, Meta(ge=2, le=limits.MAX_VOCABULARY)]
    probes: Annotated[tuple[Probe, ...], Meta(min_length=1, max_length=MAX_PROBES)]
    thresholds: Thresholds
    measured: Report | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The reference of a bundle.

    Attributes:
        measured: what the export measured; `None` before it did.
        token_ids: int32 `(N,)`.
        top_ids: int32 `(N, K)`, most probable first.
        top_logits: float32 `(N, K)`.
        log_sum_exp: float32 `(N,)`.
        next_logits: float32 `(N,)`, of the token that follows in the probe; without meaning at
            the end of each.
    """

    probes: tuple[Probe, ...]
    thresholds: Thresholds
    measured: Report | None
    token_ids: NDArray[np.int32]
    top_ids: NDArray[np.int32]
    top_logits: NDArray[np.float32]
    log_sum_exp: NDArray[np.float32]
    next_logits: NDArray[np.float32]


def summarize(
    logits_NV: NDArray[Any], top_k: int
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
    """Keep of logits what a certificate keeps. Of equal logits the lower id comes first.

    Args:
        logits_NV: any float type.
        top_k: `K`, at least 2 and at most `V`.

    Returns:
        `top_ids (N, K)`, `top_logits (N, K)` and `log_sum_exp (N,)`.
    """
    top_ids = np.argsort(-logits_NV, axis=-1, kind="stable")[:, :top_k]
    return (
        top_ids.astype(np.int32),
        np.take_along_axis(logits_NV, top_ids, axis=-1).astype(np.float32),
        log_sum_exp(logits_NV).astype(np.float32),
    )


def log_sum_exp(logits_NV: NDArray[Any]) -> NDArray[np.float64]:
    """Logarithm of the sum of exponentials of each row, `(N,)`, summed in float64."""
    sums = np.empty(len(logits_NV), np.float64)
    # row by row: float64 for one row of the vocabulary, not for all of them
    for index, row in enumerate(logits_NV):
        wide = row.astype(np.float64)
        highest = wide.max()
        sums[index] = highest + np.log(np.exp(wide - highest).sum())
    return sums


def write(folder: Path, certificate: Certificate) -> None:
    """Write both files: the same bytes for the same certificate.

    The seconds of `measured` are written as 0, since they differ from run to run.

    Raises:
        CertificateError: its parts do not agree.
    """
    measured = certificate.measured
    if measured is not None:
        measured = msgspec.structs.replace(measured, seconds=0.0)
    document = _Document(
        schema=1,
        top_k=certificate.top_ids.shape[-1],
        probes=certificate.probes,
        thresholds=certificate.thresholds,
        measured=measured,
    )
    arrays = {
        "token_ids": certificate.token_ids,
        "lengths": np.array([probe.length for probe in certificate.probes], np.int32),
        "top_ids": certificate.top_ids,
        "top_logits": certificate.top_logits,
        "log_sum_exp": certificate.log_sum_exp,
        "next_logits": certificate.next_logits,
    }
    for name, (dtype, shape) in _expected_arrays(document).items():
        if arrays[name].dtype != dtype or arrays[name].shape != shape:
            raise _error(f"{name} as {dtype} {shape}", f"{arrays[name].dtype} {arrays[name].shape}")
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, **arrays)
    (folder / ARRAYS_NAME).write_bytes(packed.getvalue())
    compact = msgspec.json.encode(document, order="deterministic")
    (folder / JSON_NAME).write_bytes(msgspec.json.format(compact, indent=2) + b"\n")


def read(bundle: Bundle) -> Certificate:
    """Read the certificate of a bundle and check that it belongs to its model.

    Raises:
        BundleError: a file of it is missing or altered.
        CertificateError: its parts do not agree, or it is of another model.
    """
    name = bundle.manifest.certificate
    try:
        document = msgspec.json.decode(bundle.read(name), type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _error("certificate.json of schema 1", str(error)[:300]) from error
    arrays = _read_arrays(
        bundle.read(str(PurePosixPath(name).with_suffix(".npz"))), _expected_arrays(document)
    )
    certificate = Certificate(
        probes=document.probes,
        thresholds=document.thresholds,
        measured=document.measured,
        token_ids=arrays["token_ids"],
        top_ids=arrays["top_ids"],
        top_logits=arrays["top_logits"],
        log_sum_exp=arrays["log_sum_exp"],
        next_logits=arrays["next_logits"],
    )
    lengths = [probe.length for probe in document.probes]
    if arrays["lengths"].tolist() != lengths:
        raise _error(f"the lengths {lengths}", f"{arrays['lengths'].tolist()}")
    _check_values(certificate, bundle)
    return certificate


def _expected_arrays(document: _Document) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    total = sum(probe.length for probe in document.probes)
    integer, number = np.dtype(np.int32), np.dtype(np.float32)
    return {
        "token_ids": (integer, (total,)),
        "lengths": (integer, (len(document.probes),)),
        "top_ids": (integer, (total, document.top_k)),
        "top_logits": (number, (total, document.top_k)),
        "log_sum_exp": (number, (total,)),
        "next_logits": (number, (total,)),
    }


def _read_arrays(
    data: bytes, expected: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
) -> dict[str, NDArray[Any]]:
    """Read arrays whose types and shapes are known, before memory is taken for them.

    numpy's own reader believes the header of an array, and allocates what that says.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = sorted(info.filename for info in archive.infolist())
            if names != sorted(f"{name}.npy" for name in expected):
                raise _error(f"the arrays {', '.join(expected)}", ", ".join(names)[:300])
            return {
                name: _read_array(archive, name, dtype, shape)
                for name, (dtype, shape) in expected.items()
            }
    # NotImplementedError: a compression that this Python lacks; RuntimeError: a password
    except (zipfile.BadZipFile, ValueError, EOFError, RuntimeError, OSError) as error:
        raise _error("an archive of arrays", str(error)[:300]) from error


def _read_array(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> NDArray[Any]:
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > size + _HEADER_BYTES:
        raise _error(f"{size} bytes for {name}, not compressed", f"{info.file_size}")
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise _error(f"an array of version 1.0 for {name}", f"{version}")
        got_shape, is_fortran, got_dtype = np.lib.format.read_array_header_1_0(
            file, max_header_size=_HEADER_BYTES
        )
        if got_shape != shape or got_dtype != dtype or is_fortran:
            raise _error(f"{name} as {dtype} {shape}", f"{got_dtype} {got_shape}")
        values = file.read()
    if len(values) != size:
        raise _error(f"{size} bytes for {name}", f"{len(values)}")
    return np.frombuffer(values, dtype).reshape(shape)


def _check_values(certificate: Certificate, bundle: Bundle) -> None:
    manifest = bundle.manifest
    longest = max(probe.length for probe in certificate.probes)
    if longest > manifest.context_length:
        raise _error(f"probes within the context of {manifest.context_length}", f"{longest}")
    for name, ids in (("token_ids", certificate.token_ids), ("top_ids", certificate.top_ids)):
        if ids.min() < 0 or ids.max() >= manifest.vocab_size:
            raise _error(
                f"{name} from 0 to {manifest.vocab_size - 1}", f"{ids.min()} to {ids.max()}"
            )
    for name, numbers in (
        ("top_logits", certificate.top_logits),
        ("log_sum_exp", certificate.log_sum_exp),
        ("next_logits", certificate.next_logits),
    ):
        if not np.isfinite(numbers).all():
            raise _error(f"finite numbers in {name}", "others")


def _error(expected: str, got: str) -> CertificateError:
    return CertificateError(
        f"certificate: expected {expected}, got {got}. "
        "The certificate is damaged or of another model: export the bundle again."
    )
