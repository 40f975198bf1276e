"""Builds the library of hosts/c, and calls its programs.

Needs CMake, a C compiler, and onnxruntime_c_api.h, which `make onnxruntime-header` downloads.
"""

import os
import shutil
import subprocess
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.hosts import header
from tests.runtime.tiny_decoder import VOCABULARY

REPOSITORY = Path(__file__).parents[2]
HOST = REPOSITORY / "hosts" / "c"
LIBRARY = Path(str(distribution("onnxruntime").locate_file("onnxruntime/capi")))

SANITIZED = ("-DORTOLAN_SANITIZE=address,undefined",)
SANITIZERS = {
    "LSAN_OPTIONS": f"suppressions={HOST / 'tests' / 'leaks.txt'}:print_suppressions=0",
    "ASAN_OPTIONS": "detect_stack_use_after_return=1",
}


class Built(NamedTuple):
    """A build folder, the environment of its programs, and the words of what runs them."""

    folder: Path
    environment: dict[str, str]
    runner: tuple[str, ...] = ()

    def run(
        self, program: str, *arguments: object, before: tuple[str, ...] = (), text: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program; `before` are the words of one that runs it."""
        return subprocess.run(
            [*before, *self.runner, self.folder / program, *map(str, arguments)],
            env=os.environ | self.environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=280,
        )

    def generate(
        self,
        bundle: Path,
        prompt: list[int],
        new: int,
        *,
        stop: tuple[int, ...] = (),
        **options: Any,
    ) -> list[int]:
        """Generate twice, check that both are equal and finish, and return the ids."""
        done = self.run("run", *arguments(bundle, prompt, new, stop=stop, **options))
        assert done.returncode == 0, done.stderr
        first, second = done.stdout.splitlines()
        assert first == second
        return [int(word) for word in first.split()[:-1]]


def arguments(
    bundle: Path,
    prompt: list[int],
    new: int,
    *,
    capacity: int = 60_000,
    stop: tuple[int, ...] = (),
    **options: Any,
) -> list[object]:
    """Arguments of hosts/c/tests/run.c."""
    defaults = {
        "min_new_tokens": 0,
        "temperature": 0,
        "top_k": 0,
        "top_p": 1,
        "min_p": 0,
        "repetition_penalty": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "seed": 0,
    }
    values = (defaults | options).values()
    assert len(values) == len(defaults), options
    return [bundle, new, capacity, *values, len(stop), *stop, *prompt]


def build(folder: Path, *options: str) -> Built:
    """Build the library and its programs, or skip the test where a tool is missing."""
    if shutil.which("cmake") is None or shutil.which("cc") is None:
        pytest.skip("needs cmake and a C compiler")
    include = header.find()
    if include is None:
        pytest.skip("needs onnxruntime_c_api.h. Run `make onnxruntime-header`")
    configure = ["cmake", "-S", str(HOST), "-B", str(folder), f"-DONNXRUNTIME_INCLUDE={include}"]
    flags = [f"-DONNXRUNTIME_DIR={LIBRARY}", "-DCMAKE_C_FLAGS=-Werror"]
    if header.PCRE2.is_file() and not Path("/usr/include/pcre2.h").is_file():
        flags.append(f"-DPCRE2_HEADER={header.PCRE2.parent}")
    flags += options
    for command in ([*configure, *flags], ["cmake", "--build", str(folder)]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return Built(folder, {})


def failure(built: Built, bundle: Path, prompt: list[int], new: int = 4, **options: Any) -> str:
    done = built.run("run", *arguments(bundle, prompt, new, **options))
    assert done.returncode == 1, done.stdout
    return done.stderr


def random_ids(count: int) -> list[int]:
    ids: list[int] = np.random.default_rng(count).integers(0, VOCABULARY, count).tolist()
    return ids
