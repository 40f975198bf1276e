"""The headers of onnxruntime's C API, which no Python package has, and of PCRE2.

    python -m tests.hosts.header build/onnxruntime

Downloads Debian's libonnxruntime-dev and libpcre2-dev (1 MB) and unpacks them. Changes nothing
outside that folder.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

from tests.debian import SetupError, download, run

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "build" / "onnxruntime"
HEADER = "onnxruntime_c_api.h"
PCRE2 = FOLDER / "usr" / "include" / "pcre2.h"
"""For the library that Debian always has; a system's own header comes first."""

SUITE = "trixie"
"""Oldest Debian with the package: onnxruntime 1.21, whose API newer libraries keep."""


def find() -> Path | None:
    """Return the folder of the header: `$ONNXRUNTIME_INCLUDE`, the download or the system's."""
    named = os.environ.get("ONNXRUNTIME_INCLUDE")
    places = [Path(named)] if named else []
    places += [root / "usr" / "include" / "onnxruntime" for root in (FOLDER, Path("/"))]
    return next((place for place in places if (place / HEADER).is_file()), None)


def make(folder: Path) -> None:
    """Download the headers, unless an earlier call did.

    Raises:
        SetupError: a program is missing, or the download failed.
    """
    include = folder / "usr" / "include"
    if (include / "onnxruntime" / HEADER).is_file() and (include / PCRE2.name).is_file():
        return
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise SetupError(
            f"apt-get is missing. Set ONNXRUNTIME_INCLUDE to a folder with {HEADER}, "
            "such as `include` of onnxruntime's release archive."
        )
    shutil.rmtree(folder, ignore_errors=True)
    downloads = folder / "downloads"
    downloads.mkdir(parents=True)
    download(["libonnxruntime-dev", "libpcre2-dev"], downloads, state=folder / "apt", suite=SUITE)
    for deb in downloads.glob("*.deb"):
        run(["dpkg-deb", "-x", str(deb), str(folder)], cwd=folder)
    shutil.rmtree(downloads)
    shutil.rmtree(folder / "apt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    try:
        make(args.folder.resolve())
    except SetupError as error:
        sys.exit(f"tests.hosts.header: {error}")
