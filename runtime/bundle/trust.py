"""Bundles whose modules need operators that Ortolan does not write (`runtime.graph.vocabulary`).

Nobody has tried those on hostile input, so such a bundle opens only where it was made, or where
its user said to trust whoever made it. A seal beside its files says so, for this user alone; no
manifest lists it.
"""

from pathlib import Path

from ortolan import files
from ortolan.runtime.bundle import seal
from ortolan.runtime.bundle.files import open_plain
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.manifest_file import fingerprint
from ortolan.runtime.errors import BundleError, UntrustedError

__all__ = ["NAME", "check_trusted", "trust"]

NAME = "operators.seal"

_LISTED = 3
"""Forms that an error names."""


def trust(folder: Path, manifest: Manifest) -> None:
    """Let this user open a bundle with operators of its author's own.

    Raises:
        OSError: the seal, or the key to make it, cannot be written.
    """
    files.write(folder / NAME, seal.make_seal(_sealed(manifest)))


def check_trusted(folder: Path, manifest: Manifest) -> None:
    """Refuse a bundle with operators of its author's own, unless this user trusts it.

    Raises:
        UntrustedError: names the operators, and says how to trust it.
    """
    if not manifest.foreign_operators or seal.check_seal(_sealed(manifest), _read(folder)):
        return
    named = "; ".join(manifest.foreign_operators[:_LISTED])
    more = len(manifest.foreign_operators) - _LISTED
    raise UntrustedError(
        f"{folder}: expected operators that ortolan writes itself, got {named}"
        f"{f' and {more} more' if more > 0 else ''}, which its author's module needs. A kernel "
        "that is given what it does not expect may end this process, or worse. If you trust who "
        f"made it, run `ortolan trust {folder}`, or load it with trust=True."
    )


def _sealed(manifest: Manifest) -> bytes:
    # other seals are of other things: none of them is good for this
    return f"operators\n{fingerprint(manifest)}\n".encode()


def _read(folder: Path) -> bytes:
    try:
        with open_plain(folder, NAME) as stream:
            return stream.read(128)
    except (OSError, BundleError):
        return b""
