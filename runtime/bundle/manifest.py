"""manifest.json: what a bundle holds, as typed data.

Knows how a manifest is read and written. Does not know whether the files exist or hold what the
manifest says (`ortolan.runtime.bundle.folder`), nor what is inside a graph
(`ortolan.runtime.graph.summary`).

Decoding is strict, since the manifest is the only contract between export and runtime: unknown
fields, repeated fields and numbers of the wrong kind are errors, never ignored.
"""

import msgspec

from ortolan.runtime import limits
from ortolan.runtime.bundle.checks import ADVICE, check, check_repeated_fields, refused
from ortolan.runtime.bundle.fields import (
    GRAPH_ROLES,
    MAPS_ROLE,
    NAME,
    SCHEMA,
    File,
    Graph,
    ImageSource,
    Label,
    Manifest,
    Output,
    Provenance,
    QuantizedTensor,
    Sha256,
    State,
    TextSource,
    Tokens,
)
from ortolan.runtime.errors import ManifestError

__all__ = [
    "GRAPH_ROLES",
    "MAPS_ROLE",
    "NAME",
    "SCHEMA",
    "File",
    "Graph",
    "ImageSource",
    "Label",
    "Manifest",
    "Output",
    "Provenance",
    "QuantizedTensor",
    "Sha256",
    "State",
    "TextSource",
    "Tokens",
    "decode",
    "encode",
]


class _Version(msgspec.Struct):
    """The one field that every schema has."""

    schema: int


def decode(data: bytes) -> Manifest:
    """Read a manifest and check that its parts agree.

    Args:
        data: the bytes of manifest.json.

    Raises:
        ManifestError: not UTF-8 JSON, another schema, a field unknown, missing, repeated, out
            of range or not for this kind of bundle, or a name that no file of the bundle has.
    """
    if len(data) > limits.MAX_MANIFEST_BYTES:
        raise refused(f"at most {limits.MAX_MANIFEST_BYTES} bytes", f"{len(data)}")
    try:
        schema = msgspec.json.decode(data, type=_Version).schema
        if schema != SCHEMA:
            raise ManifestError(
                f"{NAME}: expected schema {SCHEMA}, got {schema}. "
                "Export the bundle again, or install the version of ortolan that made it."
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    # UnicodeDecodeError is no DecodeError; deep nesting is a RecursionError
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestError(
            f"{NAME}: expected a manifest of schema {SCHEMA}, got {str(error)[:300]}. {ADVICE}"
        ) from error
    check_repeated_fields(data)
    check(manifest)
    return manifest


def encode(manifest: Manifest) -> bytes:
    """Write a manifest: indented, the same bytes for the same manifest, newline at the end.

    Raises:
        ManifestError: `decode` would refuse the result.
    """
    compact = msgspec.json.encode(manifest, order="deterministic")
    data = msgspec.json.format(compact, indent=2) + b"\n"
    decode(data)
    return data
