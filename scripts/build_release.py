"""Build the files of a release twice, and check that both builds are identical.

    python scripts/build_release.py [dist]

Builds the sdist and the wheel of `ortolan`, and the wheel of `ortolan-runtime`, from the files of
the last commit. File times are the commit's, so builds of a commit are identical. Prints the
hashes as `sha256sum` does. Exit status 1 if a build fails, or if the two differ.
Needs git, and the packages build and setuptools.
"""

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

BUILDS = (
    ("-m", "build", "--no-isolation", "--outdir", "dist", "."),
    ("scripts/build_runtime_wheel.py", "dist"),
)
"""Arguments of Python, each run in a copy of the commit."""


def run(*command: str | Path, folder: Path = ROOT, **variables: str) -> bytes:
    """Output of a command. Raises CalledProcessError if it fails."""
    environment = os.environ | variables
    return subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True
    ).stdout


def build(folder: Path) -> dict[str, Path]:
    """Build everything from a new copy of the last commit in `folder`; files by name."""
    archive = run("git", "archive", "HEAD")
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    time = run("git", "log", "-1", "--format=%ct").decode().strip()
    for arguments in BUILDS:
        run(sys.executable, *arguments, folder=folder, SOURCE_DATE_EPOCH=time)
    for sdist in (folder / "dist").glob("*.tar.gz"):
        repack(sdist, int(time))
    return {file.name: file for file in (folder / "dist").iterdir()}


def repack(sdist: Path, time: int) -> None:
    """Set one time and no owner for all files; setuptools stamps those that it generates."""
    with tarfile.open(sdist) as archive:
        members = sorted(archive.getmembers(), key=lambda member: member.name)
        contents = {
            member.name: file.read()
            for member in members
            if (file := archive.extractfile(member)) is not None
        }
    with (
        sdist.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=time) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for member in members:
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.mode, plain.linkname = member.type, member.mode, member.linkname
            plain.mtime, content = time, contents.get(member.name, b"")
            plain.size = len(content) if member.isfile() else 0
            archive.addfile(plain, io.BytesIO(content))


def digest(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main() -> int:
    """Build into the folder given on the command line, by default dist."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=ROOT / "dist")
    out: Path = parser.parse_args().out
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        try:
            built, again = build(Path(first)), build(Path(second))
        except subprocess.CalledProcessError as error:
            print(f"build_release.py: {error}\n{error.stderr.decode()}", file=sys.stderr)
            return 1
        different = [name for name in built if digest(built[name]) != digest(again[name])]
        if different:
            print(f"build_release.py: two builds differ: {', '.join(different)}", file=sys.stderr)
            return 1
        out.mkdir(parents=True, exist_ok=True)
        for name, file in sorted(built.items()):
            print(f"{digest(file)}  {shutil.copy(file, out / name)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
