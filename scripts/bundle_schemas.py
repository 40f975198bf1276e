"""Writes the JSON Schemas of manifest.json and certificate.json to docs/bundle."""

from pathlib import Path

import msgspec

from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.verification.certificate_files import Document

FOLDER = Path(__file__).parents[1] / "docs" / "bundle"
SCHEMAS = {"manifest": Manifest, "certificate": Document}


def schema(name: str) -> bytes:
    """The file of a schema."""
    document = msgspec.json.encode(msgspec.json.schema(SCHEMAS[name]), order="sorted")
    # anchors of Python, which JSON Schema lacks
    portable = document.replace(rb"\\A", b"^").replace(rb"\\Z", b"$")
    return msgspec.json.format(portable, indent=1) + b"\n"


def main() -> None:
    """Write both files."""
    FOLDER.mkdir(exist_ok=True)
    for name in SCHEMAS:
        (FOLDER / f"{name}.schema.json").write_bytes(schema(name))


if __name__ == "__main__":
    main()
