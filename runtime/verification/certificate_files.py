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
from ortolan.runtime.bundle.interface import TYPES, inputs_of
from ortolan.runtime.bundle.kinds import ENCODER, KINDS, OUTPUTS
from ortolan.runtime.bundle.manifest import KindName, Manifest, OutputName
from ortolan.runtime.bundle.sources import (
    AudioSource,
    ChunkedSource,
    ImageSource,
    PatchSource,
    Source,
    TextSource,
    WaveSource,
)
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

SCHEMA: Final = 3
"""Schema that this version reads and writes."""

Outputs = Annotated[int, Meta(ge=1, le=limits.MAX_DIMENSION)]

_IMAGE_AXES = ("height", "width", "channels")

_INTEGER, _NUMBER, _BYTE = np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.uint8)


class _Image(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Size of the images in pixels."""

    height: Annotated[int, Meta(ge=1, le=limits.MAX_IMAGE_SIDE)]
    width: Annotated[int, Meta(ge=1, le=limits.MAX_IMAGE_SIDE)]
    channels: Annotated[int, Meta(ge=1, le=4)]


class Document(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """certificate.json; see `Certificate` and `ExpectedWeights` for fields not listed here.

    Attributes:
        top_k: logits kept per row; `None` for vectors.
        width: of a vector; `None` for logits.
        image: size, if the probes are images.
        has_types: whether the tokens of the probes have types.
        has_waves: whether the probes are waves.
        has_pictures: whether the probes are images of several sizes, made by a rule
            (`sized_picture`).
        arrays: contents of certificate.bin.
    """

    schema: Literal[3]
    top_k: Annotated[int, Meta(ge=2, le=limits.MAX_VOCABULARY)] | None = None
    probes: Annotated[tuple[Probe, ...], Meta(min_length=1, max_length=limits.MAX_PROBES)]
    thresholds: Thresholds
    measured: Report | None
    kind: KindName = "decoder"
    output: OutputName = "logits"
    width: Annotated[int, Meta(ge=1, le=limits.MAX_DIMENSION)] | None = None
    image: _Image | None = None
    has_types: bool = False
    has_waves: bool = False
    has_pictures: bool = False
    text: Label
    outputs: Annotated[dict[Label, Outputs], Meta(max_length=limits.MAX_INITIALIZERS)]
    stored: Annotated[dict[Label, Sha256], Meta(max_length=limits.MAX_INITIALIZERS)]
    surroundings: Surroundings | None = None
    arrays: Annotated[tuple[ListedArray, ...], Meta(max_length=limits.MAX_STATES)] = ()


class _Schema(msgspec.Struct, frozen=True, kw_only=True):
    """The part that certificates of all schemas share."""

    schema: int


def write_certificate(folder: Path, certificate: Certificate) -> None:
    """Write both files, always the same bytes for the same certificate.

    The seconds of `measured` become 0, since they differ from run to run.
    """
    measured = certificate.measured
    if measured is not None:
        measured = msgspec.structs.replace(measured, seconds=0.0)
    reference, images = certificate.reference, certificate.images
    sizes = None if images is None else dict(zip(_IMAGE_AXES, images.shape[1:], strict=True))
    document = Document(
        schema=SCHEMA,
        top_k=reference.top_ids.shape[-1] if isinstance(reference, Logits) else None,
        probes=certificate.probes,
        thresholds=certificate.thresholds,
        measured=measured,
        kind=certificate.kind,
        output=certificate.output,
        width=reference.values.shape[-1] if isinstance(reference, Vectors) else None,
        image=None if sizes is None else _Image(**sizes),
        has_types=certificate.types is not None,
        has_waves=certificate.has_waves,
        has_pictures=certificate.has_pictures,
        text=certificate.text,
        outputs=dict(certificate.weights.outputs),
        stored=dict(certificate.weights.stored),
        surroundings=certificate.surroundings,
    )
    expected = _expected_arrays(document)
    document = msgspec.structs.replace(document, arrays=listed(expected))
    files.write(folder / ARRAYS_NAME, pack(_arrays(certificate), expected))
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
        schema = msgspec.json.decode(data, type=_Schema).schema
        if schema < SCHEMA:
            raise CertificateError(
                f"{JSON_NAME} has schema {schema} of an older version of Ortolan "
                f"(expected {SCHEMA}). The bundle was verified when it was exported and still "
                "runs; export the checkpoint again to verify it here."
            )
        document = msgspec.json.decode(data, type=Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(f"{JSON_NAME} of schema {SCHEMA}", str(error)[:300]) from error
    _check_document(document, manifest)
    expected = _expected_arrays(document)
    if document.arrays != listed(expected):
        raise damaged(f"the arrays {', '.join(expected)}", "others")
    arrays = unpack(read_arrays(), expected)
    _check_values(arrays, manifest)
    return _certificate(document, arrays)


def _arrays(certificate: Certificate) -> dict[str, NDArray[Any]]:
    reference = certificate.reference
    return {
        "token_ids": certificate.token_ids,
        "types": certificate.types,
        "source_ids": certificate.source_ids,
        "images": certificate.images,
        "lengths": np.array([probe.length for probe in certificate.probes], np.int32),
        "weight_sums": certificate.weights.sums,
        "weight_sizes": certificate.weights.sizes,
        **{entry.name: getattr(reference, entry.name) for entry in fields(reference)},
    }


def _expected_arrays(document: Document) -> Shapes:
    probes, image, kind = document.probes, document.image, KINDS[document.kind]
    total = sum(probe.length for probe in probes)
    rows = sum(len(kept_positions(probe.length, document.output)) for probe in probes)
    sums = sum(map(blocks, document.outputs.values()))
    expected: Shapes = {
        "lengths": (_INTEGER, (len(probes),)),
        "weight_sums": (_NUMBER, (VECTORS, sums)),
        "weight_sizes": (_NUMBER, (sums,)),
    }
    if image is not None:
        shape = (len(probes), image.height, image.width, image.channels)
        expected["images"] = (_BYTE, shape)
    is_made = document.has_waves or document.has_pictures
    if kind.has_decoder or (image is None and not is_made):
        expected["token_ids"] = (_INTEGER, (total,))
    if document.has_types:
        expected["types"] = (_INTEGER, (total,))
    if image is None and not document.has_waves and kind.reads_source:
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


def _certificate(document: Document, arrays: dict[str, Any]) -> Certificate:
    lengths = [probe.length for probe in document.probes]
    if arrays["lengths"].tolist() != lengths:
        raise damaged(f"the lengths {lengths}", f"{arrays['lengths'].tolist()}")
    kind = Logits if document.top_k is not None else Vectors
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
        has_waves=document.has_waves,
        has_pictures=document.has_pictures,
        kind=document.kind,
        output=document.output,
        text=document.text,
        weights=ExpectedWeights(
            outputs=document.outputs,
            sums=arrays["weight_sums"],
            sizes=arrays["weight_sizes"],
            stored=document.stored,
        ),
        surroundings=document.surroundings,
    )


def _check_document(document: Document, manifest: Manifest) -> None:
    """Check that outputs and probes fit the bundle."""
    expected, actual = (manifest.kind, manifest.output_kind.name), (document.kind, document.output)
    output = OUTPUTS[document.output]
    if actual != expected and not (
        # Another score function for the same labels is reported by the check of surroundings.
        document.surroundings is not None
        and document.kind == manifest.kind
        and output.scores is not None
        and manifest.output_kind.scores is not None
        and manifest.output_kind.by_token == output.by_token
    ):
        raise damaged(f"the {expected[1]} of kind {expected[0]!r}", f"{actual[1]} of {actual[0]!r}")
    wanted = ("top_k", "mean_kl") if output.are_logits else ("width", "mean_cosine")
    values = {
        "top_k": document.top_k,
        "width": document.width,
        "mean_kl": document.thresholds.mean_kl,
        "mean_cosine": document.thresholds.mean_cosine,
    }
    present = tuple(name for name, value in values.items() if value is not None)
    if present != wanted:
        raise damaged(" and ".join(wanted), " and ".join(present) or "neither")
    if manifest.output is not None and document.width not in (None, manifest.output.size):
        raise damaged(f"vectors of width {manifest.output.size}", f"{document.width}")
    image = None
    if isinstance(manifest.source, ImageSource):
        image = _Image(**{name: getattr(manifest.source, name) for name in _IMAGE_AXES})
    if document.image != image:
        raise damaged(f"{image or 'no images'}", f"{document.image or 'none'}")
    has_types = TYPES in inputs_of(ENCODER, manifest)
    if document.has_types != has_types:
        raise damaged(f"{'' if has_types else 'no '}token types", "others")
    has_waves = isinstance(manifest.source, WaveSource | ChunkedSource)
    if document.has_waves != has_waves:
        raise damaged(f"{'' if has_waves else 'no '}waves", "others")
    _check_pictures(document, manifest.source)
    has_source = manifest.model_kind.reads_source and not isinstance(
        manifest.source, ImageSource | AudioSource
    )
    if any((probe.source is not None) != has_source for probe in document.probes):
        raise damaged(
            "a source length for each probe" if has_source else "no source lengths", "others"
        )
    longest = max(probe.length for probe in document.probes)
    if longest > manifest.context_length:
        raise damaged(f"probes within the context of {manifest.context_length}", f"{longest}")
    most = max(probe.source or 0 for probe in document.probes)
    if isinstance(manifest.source, TextSource) and most > manifest.source.max_tokens:
        raise damaged(f"sources of at most {manifest.source.max_tokens} tokens", f"{most}")
    if isinstance(manifest.source, WaveSource) and most > manifest.source.vectors:
        raise damaged(f"waves of at most {manifest.source.vectors} vectors", f"{most}")


def _check_pictures(document: Document, source: Source | None) -> None:
    """Check that probes are pictures whose sizes the rule gives, or none are."""
    has_pictures = isinstance(source, PatchSource)
    if document.has_pictures != has_pictures:
        raise damaged(f"{'' if has_pictures else 'no '}images of several sizes", "others")
    if not isinstance(source, PatchSource):
        return
    sizes = [picture_size(source, number) for number in range(len(document.probes))]
    lengths = [source.length(*size) for size in sizes]
    if [probe.length for probe in document.probes] != lengths:
        raise damaged(f"images of {lengths} vectors", "others")


def _types(manifest: Manifest) -> int:
    return manifest.source.types if isinstance(manifest.source, TextSource) else 1


def _check_values(arrays: dict[str, NDArray[Any]], manifest: Manifest) -> None:
    size = manifest.vocab_size if manifest.output is None else manifest.output.size
    bounds = {
        "token_ids": manifest.vocab_size,
        "types": _types(manifest),
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
