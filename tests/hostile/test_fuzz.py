"""A little fuzzing; `make fuzz` does more."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.hostile import bundles
from tests.hostile.command import ROOT
from tests.hostile.fuzz import COLUMNS
from tests.hostile.known_crashes import CRASHES
from tests.hostile.mutants import mutant
from tests.hostile.targets import TARGETS

SEED = "7"

CHILD = """
import os, sys, time
import numpy as np
from ortolan.errors import OrtolanError
from tests.hostile import child

child.SLOW_S, child.HUNG_S, child.MEMORY_MB = 1, 2, 50

def use(say):
    say("body")
    {body}

outcome = child.run(use, __import__("pathlib").Path(sys.argv[1]), usual_mb=60)
print(outcome.kind, outcome.stage, outcome.is_finding, outcome.message, sep="|")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder where each kind of bundle is written once."""
    return tmp_path_factory.mktemp("bundles")


def python(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run a fresh Python that can import `tests`."""
    path = os.pathsep.join([f"{ROOT / 'src'}", f"{ROOT}"])
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def module(name: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    return python("-m", f"tests.hostile.{name}", *arguments)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("pass", "loaded|body|False|"),
        ("raise OrtolanError('no')", "refused|body|False|OrtolanError: no"),
        ("raise KeyError('x')", "untyped|body|True|KeyError: 'x'"),
        ("os.abort()", "died|body|True|SIGABRT"),
        ("os._exit(0)", "died|body|True|exit"),
        ("until = time.process_time() + 1.2\n    while time.process_time() < until: pass", "slow"),
        ("while True: pass", "hung|body|True|SIGXCPU"),
        ("np.ones(12 << 20)", "memory|body|True|"),
    ],
)
def test_every_way_to_end_is_recognized(body: str, expected: str, tmp_path: Path) -> None:
    done = python("-c", CHILD.format(body=body), tmp_path / "log")

    assert done.stdout.startswith(expected), done


def test_a_mutant_is_determined_by_its_name(folder: Path) -> None:
    bundles.write(folder, ("decoder",))
    original = bundles.read(folder, "decoder")
    names = [f"decoder/{SEED}/{number}" for number in range(60)]
    mutants = [mutant(original, name) for name in names]

    assert mutants == [mutant(original, name) for name in names]
    assert len({mutant.changes for mutant in mutants}) == len(mutants)
    assert mutant(original, "decoder/7/-").files == original
    changed = {name for m in mutants for name in original if m.files.get(name) != original[name]}
    assert changed == set(original)


def counts(table: str) -> dict[str, int]:
    (line,) = re.findall(r"^all +\|(.*)$", table, re.MULTILINE)
    return dict(zip(COLUMNS, map(int, line.split("|")), strict=True))


def test_mutants_work_or_are_refused(folder: Path) -> None:
    kinds = ("--kinds", *bundles.HANDMADE)
    done = module("fuzz", "--bundles", folder, "--seed", SEED, "--count", 60, *kinds)

    assert done.returncode == 0, done.stdout + done.stderr
    total = counts(done.stdout)
    assert sum(total.values()) == 60
    assert min(total["loaded"], total["refused at open"]) > 2, done.stdout


@pytest.mark.slow
def test_a_server_answers_every_request_and_forgets_clients_that_leave(folder: Path) -> None:
    done = module("fuzz_server", "--bundles", folder, "--seed", SEED, "--count", 250)

    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"'[24]xx': \d\d", done.stdout)) == 2, done.stdout
    assert "'left': 50" in done.stdout


@pytest.mark.slow
def test_mutants_of_exports_work_or_are_refused(folder: Path) -> None:
    done = module("fuzz", "--bundles", folder, "--seed", SEED, "--count", 150)

    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(counts(done.stdout).values()) == 150


@pytest.mark.slow
def test_requests_are_answered_or_refused_and_change_nothing(folder: Path) -> None:
    done = module("fuzz_requests", "--bundles", folder, "--seed", SEED, "--count", 3000)

    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"'answered': [1-9]", done.stdout)) == len(TARGETS), done.stdout


@pytest.fixture(scope="module")
def crashes(folder: Path) -> dict[str, Any]:
    return dict(json.loads(module("known_crashes", folder).stdout))


@pytest.mark.parametrize("name", CRASHES)
def test_a_crashing_graph_is_refused_and_ends_no_process(
    name: str, crashes: dict[str, Any]
) -> None:
    assert crashes[name]["kind"] == "refused", crashes[name]
