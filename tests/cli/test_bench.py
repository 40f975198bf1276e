"""`ortolan bench` on a bundle of two layers."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.runtime.tiny_decoder import write_bundle

from ortolan.cli.bench import bench_command


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("bench") / "bundle").path


def bench(path: Path, *options: str) -> str:
    done = CliRunner().invoke(
        bench_command, [str(path), "-r", "1", *options], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return done.stdout


def figures(path: Path, *options: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(bench(path, *options, "--json"))
    return result


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("", "pp512,tg128"),
        ("-p 4 -p 8 -n 2 -d 0 -d 16", "pp4,pp8,tg2,pp4 @ d16,pp8 @ d16,tg2 @ d16"),
        ("-p 0 -n 2", "tg2"),
        ("-n 0 -p 2", "pp2"),
    ],
)
def test_every_length_is_measured_at_every_depth(path: Path, options: str, names: str) -> None:
    assert [case["name"] for case in figures(path, *options.split())["cases"]] == names.split(",")


def test_the_table_is_aligned(path: Path) -> None:
    table, about = bench(path, "-p", "16", "-n", "8").split("\n\n")
    header, prefill, decoding = table.splitlines()
    assert header.split() == ["test", "tok/s", "±", "median"]
    assert len(prefill.split()) == len(decoding.split()) == 4
    assert len(prefill) == len(decoding) == len(header)
    for name in ("model", "run", "cache", "memory"):
        assert f"\n{name} " in f"\n{about}"


def test_json_has_the_figures_of_the_table(path: Path) -> None:
    result = figures(path, "-p", "16", "-n", "8", "--threads", "1")
    for case in result["cases"]:
        assert case["speed"]["runs"] == [case["speed"]["mean"]] == [case["speed"]["median"]]
    assert (result["threads"], result["device"], result["repetitions"]) == (1, "cpu", 1)
