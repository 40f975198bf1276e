"""Bundles exported on this machine run and verify on ARM processors, in software.

`make test-arm` makes the machine; a case takes one to four minutes. With `-rP` each case prints its
row of the table in docs/guides/edge-devices.md.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.arm import machine
from tests.cli.conftest import run_here
from tests.runtime.tiny_decoder import tokenizer_json, write_bundle

pytestmark = pytest.mark.slow

MACHINE = machine.REPOSITORY / "build" / "arm" / "machine"
PROMPT, TOKENS = "def read_lines(path):", 32


@pytest.fixture(scope="module", autouse=True)
def _machine() -> None:
    if reason := machine.missing(MACHINE):
        pytest.skip(reason)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The model of models/pythonic in a precision."""
    folder = tmp_path_factory.mktemp("arm")

    def exported(precision: str) -> Path:
        path = folder / precision
        if not path.exists():
            source = machine.REPOSITORY / "models" / "pythonic"
            done = run_here("export", source, path, "--precision", precision)
            assert done.returncode == 0, done.stderr.decode()
        return path

    return exported


def test_text_that_does_not_fit_into_memory_is_rejected(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle", context_length=1 << 18, tokenizer=tokenizer_json())
    machine.add_view(MACHINE, "cortex-a76", tmp_path / "view", available=16 << 20)
    words = ("run", tmp_path / "bundle", "a", "-n", "200000")
    run = machine.ortolan(MACHINE, "cortex-a76", *words, view=tmp_path / "view")
    assert run.returncode == 2, run.stdout
    assert "Not enough memory to generate (1 x 200001 tokens)" in run.stderr


def generated(standard_output: str | bytes) -> list[int]:
    tokens: list[int] = json.loads(standard_output)["tokens"]
    return tokens


@pytest.mark.parametrize("cpu", machine.CPUS)
@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_bundle_runs_and_verifies(cpu: str, precision: str, bundles: Callable[[str], Path]) -> None:
    bundle = bundles(precision)
    words = ("run", bundle, PROMPT, "-n", str(TOKENS), "--json")
    here = generated(run_here(*words).stdout)
    run = machine.ortolan(MACHINE, cpu, *words)
    assert run.returncode == 0, run.stderr
    there = generated(run.stdout)
    started = time.monotonic()
    verify = machine.ortolan(MACHINE, cpu, "verify", bundle, "--no-isolate", "--json")
    seconds = time.monotonic() - started
    assert verify.returncode in (0, 1), verify.stderr
    report = json.loads(verify.stdout)
    equal = next((i for i in range(TOKENS) if here[i] != there[i]), TOKENS)
    distance = f"{report['mean_kl']:.1e}, {report['max_abs_delta']:.1e}"
    exact = ", ".join(report["exact"]["different"]) or "all"
    outcome = (report["verdict"], distance, f"exact: {exact}", f"{seconds:.0f} s")
    row = (cpu, precision, f"{equal} of {TOKENS}", *outcome)
    print(*row, sep=" | ")
    # 8-bit products round differently on ARM, so nearly tied tokens of low-bit bundles may differ
    assert precision != "fp32" or here == there
    assert report["verdict"] == "PASS"
