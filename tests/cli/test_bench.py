"""`ortolan bench` on a bundle of two layers."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.runtime.tiny_decoder import write_bundle

from ortolan.cli.bench import command
from ortolan.runtime.machine import bandwidth


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("bench") / "bundle").path


@pytest.fixture(autouse=True)
def slow_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the measurement by a bandwidth that no model exceeds, without a cache."""
    monkeypatch.setattr(bandwidth, "read_bandwidth", lambda threads, size: 1e15)
    monkeypatch.setattr(bandwidth, "last_level_cache", lambda: 1)


def bench(path: Path, *options: str) -> str:
    done = CliRunner().invoke(command, [str(path), "-r", "1", *options], catch_exceptions=False)
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


def test_the_table_is_aligned_and_has_a_share_for_decoding_only(path: Path) -> None:
    table, about = bench(path, "-p", "16", "-n", "8").split("\n\n")[:2]
    header, prefill, decoding = table.splitlines()
    assert header.split() == [
        "test",
        "tok/s",
        "±",
        "median",
        "read/token",
        "read/s",
        "of",
        "memory",
    ]
    assert len(prefill.split()) == 4
    assert decoding.endswith("%")
    assert len(decoding) == len(header)
    assert prefill.index(prefill.split()[1]) > len("pp16")
    for name in ("model", "run", "weights", "cache", "bandwidth"):
        assert f"\n{name} " in f"\n{about}"


def test_a_model_in_the_processor_cache_has_no_share(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bandwidth, "last_level_cache", lambda: 1 << 30)
    text = bench(path, "-p", "0", "-n", "4")
    assert text.splitlines()[1].endswith("in cache")
    assert "%" not in text
    assert "precision int4" not in text


def test_json_has_the_figures_of_the_table(path: Path) -> None:
    result = figures(path, "-p", "16", "-n", "8", "--threads", "1")
    prefill, decoding = result["cases"]
    assert prefill["generation"] is None
    assert prefill["speed"]["runs"] == [prefill["speed"]["mean"]] == [prefill["speed"]["median"]]
    reads = decoding["generation"]
    per_second = reads["bytes_per_token"] * decoding["speed"]["mean"]
    assert reads["bytes_per_second"] == pytest.approx(per_second)
    assert reads["bandwidth_share"] == pytest.approx(reads["bytes_per_second"] / 1e15)
    assert (result["threads"], result["device"], result["repetitions"]) == (1, "cpu", 1)
    assert result["weights"]["bytes"] < reads["bytes_per_token"]


def test_advice_follows_the_figures(path: Path) -> None:
    text = bench(path, "-p", "0", "-n", "4")
    assert "\nadvice\n  weights in fp32: " in text
    assert "--precision int4" in text
