"""The symbols of the C library, and its header in other languages' compilers."""

import re
import shutil
import subprocess

import pytest
from tests.hosts.c_library import HOST, Built

pytestmark = pytest.mark.slow

HEADER = (HOST / "ortolan.h").read_text()


def declared() -> set[str]:
    """Names of the functions in the header."""
    code = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)
    return set(re.findall(r"^[^#\n]*?\b(ortolan_\w+)\(", code, re.M))


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")
def test_library_defines_what_the_header_declares_and_no_other_names(built: Built) -> None:
    command = ["nm", "-g", "--defined-only", "-P", str(built.folder / "libortolan.a")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    symbols = {line.split()[0] for line in lines if line and not line.endswith(":")}
    assert len(declared()) > 15
    assert declared() <= symbols
    assert {name for name in symbols if not name.startswith("ortolan_")} == set()


@pytest.mark.parametrize("compiler", [["cc", "-x", "c", "-std=c11"], ["c++", "-x", "c++"]], ids=str)
def test_header_stands_alone(compiler: list[str]) -> None:
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"needs {compiler[0]}")
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-"]
    done = subprocess.run([*compiler, *flags], input=HEADER, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
