"""`ortolan bench` on a bundle of two layers, in this process."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.runtime.tiny_decoder import CONTEXT, TinyDecoder, write_bundle

from ortolan.cli.bench import command
from ortolan.runtime.errors import ContextLengthError, DeviceError, InputError
from ortolan.runtime.machine import bandwidth


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyDecoder:
    return write_bundle(tmp_path_factory.mktemp("bench") / "bundle")


@pytest.fixture(autouse=True)
def slow_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bandwidth that a tiny model cannot exceed, without measuring it; and no cache."""
    monkeypatch.setattr(bandwidth, "read_bandwidth", lambda threads, size: 1e15)
    monkeypatch.setattr(bandwidth, "last_level_cache", lambda: 1)


def bench(path: Path, *options: str) -> str:
    done = CliRunner().invoke(command, [str(path), "-r", "1", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def figures(path: Path, *options: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(bench(path, *options, "--json"))
    return result


def names(path: Path, *options: str) -> list[str]:
    return [case["name"] for case in figures(path, *options)["cases"]]


def test_defaults_are_pp512_and_tg128(tiny: TinyDecoder) -> None:
    assert names(tiny.path) == ["pp512", "tg128"]


def test_repeated_options_give_every_length_at_every_depth(tiny: TinyDecoder) -> None:
    options = ("-p", "4", "-p", "8", "-n", "2", "-d", "0", "-d", "16")
    assert names(tiny.path, *options) == [
        *("pp4", "pp8", "tg2"),
        *("pp4 @ d16", "pp8 @ d16", "tg2 @ d16"),
    ]


@pytest.mark.parametrize(("flag", "left"), [("-p", "tg2"), ("-n", "pp2")])
def test_zero_leaves_one_kind_out(tiny: TinyDecoder, flag: str, left: str) -> None:
    other = {"-p": "-n", "-n": "-p"}[flag]
    assert names(tiny.path, flag, "0", other, "2") == [left]


def test_the_table_is_aligned_and_has_a_share_for_generation_alone(tiny: TinyDecoder) -> None:
    table, about = bench(tiny.path, "-p", "16", "-n", "8").split("\n\n")[:2]
    header, prompt, generation = table.splitlines()
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
    assert len(prompt.split()) == 4
    assert generation.endswith("%")
    assert len(generation) == len(header)
    assert prompt.index(prompt.split()[1]) > len("pp16")
    for name in ("model", "run", "weights", "cache", "bandwidth"):
        assert f"\n{name} " in f"\n{about}"


def test_a_model_within_the_cache_has_no_share(
    tiny: TinyDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bandwidth, "last_level_cache", lambda: 1 << 30)
    text = bench(tiny.path, "-p", "0", "-n", "4")
    assert text.splitlines()[1].endswith("in cache")
    assert "%" not in text
    assert "precision int4" not in text


def test_json_holds_what_the_table_holds(tiny: TinyDecoder) -> None:
    result = figures(tiny.path, "-p", "16", "-n", "8", "--threads", "1")
    prompt, generation = result["cases"]
    assert prompt["generation"] is None
    assert prompt["speed"]["runs"] == [prompt["speed"]["mean"]] == [prompt["speed"]["median"]]
    read = generation["generation"]
    assert read["bytes_per_second"] == pytest.approx(
        read["bytes_per_token"] * generation["speed"]["mean"]
    )
    assert read["bandwidth_share"] == pytest.approx(read["bytes_per_second"] / 1e15)
    assert (result["threads"], result["device"], result["repetitions"]) == (1, "cpu", 1)
    assert result["weights"]["bytes"] < read["bytes_per_token"]


def test_advice_follows_the_figures(tiny: TinyDecoder) -> None:
    text = bench(tiny.path, "-p", "0", "-n", "4")
    assert "\nadvice\n  weights in fp32: " in text
    assert "Export with --precision int4" in text


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (("-n", f"{CONTEXT + 1}", "-p", "0"), ContextLengthError, f"-n {CONTEXT}"),
        (("-p", "0", "-n", "0"), InputError, "-p or -n"),
        (("--threads", "0"), InputError, "threads"),
        (("--device", "toaster"), DeviceError, "toaster"),
    ],
)
def test_what_cannot_be_measured_is_a_typed_error(
    tiny: TinyDecoder, options: tuple[str, ...], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        bench(tiny.path, *options)


@pytest.mark.parametrize("flag", ["-p", "-n", "-d"])
def test_a_negative_length_is_refused(tiny: TinyDecoder, flag: str) -> None:
    done = CliRunner().invoke(command, [str(tiny.path), flag, "-1"])
    assert done.exit_code == 2
    assert flag in done.stderr
