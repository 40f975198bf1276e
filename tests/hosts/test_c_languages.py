"""Programs in other languages continue a text with the C library as Python does."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.hosts.c_library import HOST, Built, build
from tests.hosts.test_c_header import declared
from tests.runtime.tiny_decoder import tokenizer_json, write_bundle

import ortolan

pytestmark = pytest.mark.slow

PROMPT, NEW = "def read(path):", 24
JNA = Path("/usr/share/java/jna.jar")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("c-shared"), "-DBUILD_SHARED_LIBS=ON")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("languages") / "bundle"
    return write_bundle(folder, tokenizer=tokenizer_json()).path


def needs(*programs: str, files: tuple[Path, ...] = ()) -> None:
    missing = [name for name in programs if shutil.which(name) is None]
    missing += [str(file) for file in files if not file.exists()]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


def compiled(*command: object, cwd: Path, **environment: str) -> None:
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=os.environ | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def check(bundle: Path, *program: object, cwd: Path, **environment: str) -> None:
    """Compare the program's text and error with those of Python."""
    for path in (bundle, cwd / "none"):
        words = [*map(str, program), str(path), str(NEW), PROMPT]
        done = subprocess.run(words, cwd=cwd, env=os.environ | environment, capture_output=True)
        if path == bundle:
            expected = ortolan.load(bundle).generate(PROMPT, max_new_tokens=NEW)
            assert done.stdout.decode() == expected.text, done.stderr
        else:
            assert done.returncode != 0
            assert b"is not a bundle: it has no readable manifest.json" in done.stderr


def test_shared_library_shows_what_the_header_declares_and_nothing_else(shared: Built) -> None:
    needs("nm")
    command = ["nm", "-D", "--defined-only", "-P", str(shared.folder / "libortolan.so")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {line.split()[0] for line in lines} == declared()


@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_in_cpp(shared: Built, bundle: Path, tmp_path: Path, standard: str) -> None:
    needs("c++", "pkg-config")
    (flags, links) = (
        subprocess.run(
            ["pkg-config", option, str(shared.folder / "ortolan.pc")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for option in ("--cflags", "--libs")
    )
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-std={standard}"]
    source = HOST / "examples" / "cpp" / "complete.cpp"
    compiled("c++", *warnings, *flags, source, "-o", tmp_path / "complete", *links, cwd=tmp_path)
    check(bundle, tmp_path / "complete", cwd=tmp_path)


def test_in_go(shared: Built, bundle: Path, tmp_path: Path) -> None:
    needs("go", "cc")
    source = HOST / "examples" / "go" / "complete.go"
    compiled(
        *("go", "build", "-o", tmp_path / "complete", source),
        cwd=tmp_path,
        CGO_CFLAGS=f"-I{HOST}",
        CGO_LDFLAGS=f"-L{shared.folder} -lortolan -Wl,-rpath,{shared.folder}",
        GOCACHE=str(tmp_path / "cache"),
        GOFLAGS="-mod=mod",
    )
    check(bundle, tmp_path / "complete", cwd=tmp_path)


def test_in_java(shared: Built, bundle: Path, tmp_path: Path) -> None:
    needs("javac", "java", files=(JNA,))
    source = HOST / "examples" / "java" / "Complete.java"
    compiled("javac", "-cp", JNA, "-d", tmp_path, "-Xlint:all", "-Werror", source, cwd=tmp_path)
    words = ["-cp", f"{JNA}:{tmp_path}", f"-Djna.library.path={shared.folder}", "Complete"]
    check(bundle, "java", *words, cwd=tmp_path)


def test_in_csharp(shared: Built, bundle: Path, tmp_path: Path) -> None:
    needs("mcs", "mono")
    source = HOST / "examples" / "csharp" / "Complete.cs"
    compiled("mcs", "-warnaserror", f"-out:{tmp_path / 'Complete.exe'}", source, cwd=tmp_path)
    environment = {"LD_LIBRARY_PATH": str(shared.folder)}
    check(bundle, "mono", tmp_path / "Complete.exe", cwd=tmp_path, **environment)
