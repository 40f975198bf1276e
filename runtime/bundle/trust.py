"""Trust in bundles with operators that Ortolan does not write (`runtime.graph.vocabulary`).

Their kernels have not been tested on hostile input. Such a bundle opens only where it was made, or
after its user chose to trust the author. A seal next to its files, valid for this user only and not
listed in the manifest, records that.
"""

from pathlib import Path

from ortolan import files
from ortolan.runtime.bundle import seal
from ortolan.runtime.bundle.files import open_plain
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.manifest_file import fingerprint
from ortolan.runtime.errors import BundleError, UntrustedError

NAME = "operators.seal"

_LISTED = 3
"""Operators named in an error."""


def trust(folder: Path, manifest: Manifest) -> None:
    """Trust a bundle that uses custom operators, for this user."""
    files.write(folder / NAME, seal.make_seal(_sealed(manifest)))


def check_trusted(folder: Path, manifest: Manifest) -> None:
    """Check that a bundle has no custom operators, or that this user trusts it."""
    if not manifest.foreign_operators or seal.check_seal(_sealed(manifest), _read(folder)):
        return
    named = "; ".join(manifest.foreign_operators[:_LISTED])
    more = len(manifest.foreign_operators) - _LISTED
    raise UntrustedError(
        f"{folder} uses operators that Ortolan does not write: {named}"
        f"{f' and {more} more' if more > 0 else ''}. Unexpected input to their kernels may crash "
        "this process, or worse. If you trust the author, "
        f"run `ortolan trust {folder}`, or load the bundle with trust=True."
    )


def _sealed(manifest: Manifest) -> bytes:
    # a prefix, so that no other kind of seal passes for this one
    return f"operators\n{fingerprint(manifest)}\n".encode()


def _read(folder: Path) -> bytes:
    try:
        with open_plain(folder, NAME) as stream:
            return stream.read(128)
    except (OSError, BundleError):
        return b""
