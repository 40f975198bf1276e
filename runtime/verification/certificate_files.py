"""Reads and writes certificate.json and certificate.bin."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ortolan import files
from ortolan.runtime import limits
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.field_types import Label, Sha256
from ortolan.runtime.bundle.image_sources import ImageSource, PatchSource
from ortolan.runtime.bundle.interface import inputs_of
from ortolan.runtime.bundle.kinds import ENCODER
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.source import TYPES, Problems
from ortolan.runtime.bundle.text_source import TextSource
from ortolan.runtime.errors import CertificateError
from ortolan.runtime.verification.certificate import (
    Certificate,
    Logits,
    Probe,
    Vectors,
    kept_positions,
)
from ortolan.runtime.verification.certificate_arrays import (
    ListedArray,
    Shapes,
    damaged,
    listed,
    pack,
    unpack,
)
from ortolan.runtime.verification.probes import picture_size
from ortolan.runtime.verification.report import Report, Thresholds
from ortolan.runtime.verification.surroundings import Surroundings
from ortolan.runtime.verification.weight_sums import VECTORS, ExpectedWeights, blocks

JSON_NAME = "certificate.json"
ARRAYS_NAME = "certificate.bin"

SCHEMA: Final = 1

Outputs = Annotated[int, Meta(ge=1, le=limits.MAX_DIMENSION)]

_INTEGER, _NUMBER, _BYTE = np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.uint8)


class Document(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """certificate.json; see `Certificate` and `ExpectedWeights` for fields not listed here.

    The manifest says what the model reads and returns.

    Attributes:
        top_k: logits kept per row; `None` for vectors.
        width: of a vector; `None` for logits.
    """

    schema: Literal[1]
    top_k: Annotated[int, Meta(ge=2, le=limits.MAX_VOCABULARY)] | None = None
    probes: Annotated[tuple[Probe, ...], Meta(min_length=1, max_length=limits.MAX_PROBES)]
    thresholds: Thresholds
    measured: Report | None
    width: Annotated[int, Meta(ge=1, le=limits.MAX_DIMENSION)] | None = None
    text: Label
    outputs: Annotated[dict[Label, Outputs], Meta(max_length=limits.MAX_INITIALIZERS)]
    stored: Annotated[dict[Label, Sha256], Meta(max_length=limits.MAX_INITIALIZERS)]
    surroundings: Surroundings | None = None
    arrays: Annotated[tuple[ListedArray, ...], Meta(max_length=limits.MAX_STATES)] = ()


def write_certificate(folder: Path, certificate: Certificate) -> None:
    """Write both files, always the same bytes for the same certificate.

    The seconds of `measured` become 0, since they differ from run to run.
    """
    measured = certificate.measured
    if measured is not None:
        measured = msgspec.structs.replace(measured, seconds=0.0)
    reference, arrays = certificate.reference, _arrays(certificate)
    document = Document(
        schema=SCHEMA,
        top_k=reference.top_ids.shape[-1] if isinstance(reference, Logits) else None,
        probes=certificate.probes,
        thresholds=certificate.thresholds,
        measured=measured,
        width=reference.values.shape[-1] if isinstance(reference, Vectors) else None,
        text=certificate.text,
        outputs=dict(certificate.weights.outputs),
        stored=dict(certificate.weights.stored),
        surroundings=certificate.surroundings,
        arrays=listed({name: (array.dtype, array.shape) for name, array in arrays.items()}),
    )
    files.write(folder / ARRAYS_NAME, pack(arrays))
    compact = msgspec.json.encode(document, order="deterministic")
    files.write(folder / JSON_NAME, msgspec.json.format(compact, indent=2) + b"\n")


def read_certificate(bundle: Bundle) -> Certificate:
    """Read the certificate of a bundle and check that it fits the model."""
    name = bundle.manifest.certificate
    if name is None:
        raise CertificateError(
            f"This bundle has no certificate: {bundle.manifest.unverified}. It can run, but not be "
            "verified."
        )
    arrays = str(PurePosixPath(name).with_suffix(".bin"))
    return decode_certificate(bundle.read(name), lambda: bundle.read(arrays), bundle.manifest)


def decode_certificate(
    data: bytes, read_arrays: Callable[[], bytes], manifest: Manifest
) -> Certificate:
    """Decode a certificate and check that it fits the model."""
    try:
        document = msgspec.json.decode(data, type=Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(f"{JSON_NAME} of schema {SCHEMA}", str(error)[:300]) from error
    for expected, got in _problems(document, manifest):
        raise damaged(expected, got)
    shapes = _expected_arrays(document, manifest)
    if document.arrays != listed(shapes):
        raise damaged(f"the arrays {', '.join(shapes)}", "others")
    arrays = unpack(read_arrays(), document.arrays)
    _check_values(arrays, manifest)
    lengths = [probe.length for probe in document.probes]
    if arrays["lengths"].tolist() != lengths:
        raise damaged(f"the lengths {lengths}", f"{arrays['lengths'].tolist()}")
    kind = Vectors if document.top_k is None else Logits
    values: dict[str, Any] = {entry.name: arrays.get(entry.name) for entry in fields(kind)}
    empty = np.empty(0, np.int32)
    return Certificate(
        probes=document.probes,
        thresholds=document.thresholds,
        measured=document.measured,
        reference=kind(**values),
        token_ids=arrays.get("token_ids", empty),
        types=arrays.get("types"),
        source_ids=arrays.get("source_ids", empty),
        images=arrays.get("images"),
        kind=manifest.kind,
        output=manifest.output_kind.name,
        text=document.text,
        weights=ExpectedWeights(
            outputs=document.outputs,
            sums=arrays["weight_sums"],
            sizes=arrays["weight_sizes"],
            stored=document.stored,
        ),
        surroundings=document.surroundings,
    )


def _arrays(certificate: Certificate) -> dict[str, NDArray[Any]]:
    """The arrays that a certificate has, in the order of the file."""
    reference = certificate.reference
    arrays = {
        "lengths": np.array([probe.length for probe in certificate.probes], np.int32),
        "weight_sums": certificate.weights.sums,
        "weight_sizes": certificate.weights.sizes,
        "images": certificate.images,
        "token_ids": certificate.token_ids if certificate.token_ids.size else None,
        "types": certificate.types,
        "source_ids": certificate.source_ids if certificate.source_ids.size else None,
        **{entry.name: getattr(reference, entry.name) for entry in fields(reference)},
    }
    return {name: array for name, array in arrays.items() if array is not None}


def _expected_arrays(document: Document, manifest: Manifest) -> Shapes:
    probes, source, kind = document.probes, manifest.source, manifest.model_kind
    total = sum(probe.length for probe in probes)
    output = manifest.output_kind.name
    rows = sum(len(kept_positions(probe.length, output)) for probe in probes)
    sums = sum(map(blocks, document.outputs.values()))
    expected: Shapes = {
        "lengths": (_INTEGER, (len(probes),)),
        "weight_sums": (_NUMBER, (VECTORS, sums)),
        "weight_sizes": (_NUMBER, (sums,)),
    }
    if isinstance(source, ImageSource):  # those of other sizes follow from their numbers
        shape = (len(probes), source.height, source.width, source.channels)
        expected["images"] = (_BYTE, shape)
    is_text = source is not None and source.medium == "texts"
    if kind.has_decoder or is_text:
        expected["token_ids"] = (_INTEGER, (total,))
    if TYPES in inputs_of(ENCODER, manifest):
        expected["types"] = (_INTEGER, (total,))
    if kind.reads_source and is_text:
        expected["source_ids"] = (_INTEGER, (sum(probe.source or 0 for probe in probes),))
    if document.top_k is not None:
        expected["top_ids"] = (_INTEGER, (rows, document.top_k))
        expected["top_logits"] = (_NUMBER, (rows, document.top_k))
        expected["log_sum_exp"] = (_NUMBER, (rows,))
        if kind.has_decoder:
            expected["next_logits"] = (_NUMBER, (rows,))
    if document.width is not None:
        expected["values"] = (_NUMBER, (rows, document.width))
    return expected


def _problems(document: Document, manifest: Manifest) -> Problems:
    """Outputs and probes that do not fit the bundle."""
    source, probes, output = manifest.source, document.probes, manifest.output
    lengths = [probe.length for probe in probes]
    wanted = ("top_k", "mean_kl") if manifest.output_kind.are_logits else ("width", "mean_cosine")
    values = {
        "top_k": document.top_k,
        "width": document.width,
        "mean_kl": document.thresholds.mean_kl,
        "mean_cosine": document.thresholds.mean_cosine,
    }
    present = tuple(name for name, value in values.items() if value is not None)
    if present != wanted:
        yield " and ".join(wanted), " and ".join(present) or "neither"
    if output is not None and document.width not in (None, output.size):
        yield f"vectors of width {output.size}", f"{document.width}"
    if isinstance(source, PatchSource):
        sizes = [picture_size(source, number) for number in range(len(lengths))]
        if lengths != (expected := [source.length(*size) for size in sizes]):
            yield f"images of {expected} vectors", "others"
    if max(lengths) > manifest.context_length:
        yield f"probes within the context of {manifest.context_length}", f"{max(lengths)}"
    most = None
    if source is not None and manifest.model_kind.reads_source and not source.is_fixed:
        most = source.most_vectors
    if any((probe.source is None) != (most is None) for probe in probes):
        yield "a source length for each probe" if most else "no source lengths", "others"
    longest = max(probe.source or 0 for probe in probes)
    if most is not None and longest > most:
        yield f"sources of at most {most} tokens or vectors", f"{longest}"


def _check_values(arrays: dict[str, NDArray[Any]], manifest: Manifest) -> None:
    size = manifest.vocab_size if manifest.output is None else manifest.output.size
    bounds = {
        "token_ids": manifest.vocab_size,
        "types": manifest.source.types if isinstance(manifest.source, TextSource) else 1,
        # a single label has its absence as a second class
        "top_ids": max(size, 2),
        # sources may have another vocabulary, which only the graph knows
        "source_ids": limits.MAX_VOCABULARY,
    }
    for name, array in arrays.items():
        if array.dtype == _NUMBER and not np.isfinite(array).all():
            raise damaged(f"finite numbers in {name}", "others")
        bound = bounds.get(name)
        if bound is not None and array.size and (array.min() < 0 or array.max() >= bound):
            raise damaged(f"{name} from 0 to {bound - 1}", f"{array.min()} to {array.max()}")
