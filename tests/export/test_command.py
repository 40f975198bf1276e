from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ortolan.cli.export import command
from ortolan.export import pipeline
from ortolan.export.errors import OptionError
from ortolan.export.options import Auto, ExportOptions, Int4, Int8


class CalledError(Exception):
    """In place of an export."""


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of the export that the command asks for."""
    given: dict[str, Any] = {}

    def export(source: Path, out: Path, **options: Any) -> None:
        given.update(options, source=source, out=out)
        raise CalledError

    monkeypatch.setattr(pipeline, "export", export)
    return given


def run(*arguments: str) -> Any:
    return CliRunner().invoke(command, ["in", "out", *arguments])


def flags(line: str) -> list[str]:
    return line.split()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {"precision": "fp32", "device": "cpu", "force": False, "options": ExportOptions()}),
        (["--precision", "fp16", "--device", "cuda"], {"precision": "fp16", "device": "cuda"}),
        (["--precision", "int4"], {"precision": Int4()}),
        (
            [
                "--precision",
                "int4",
                "--group-size",
                "32",
                "--method",
                "rtn",
                "--head-bits",
                "8",
                "--asymmetric",
            ],
            {"precision": Int4(group_size=32, method="rtn", head_bits=8, asymmetric=True)},
        ),
        (
            [
                "--precision",
                "int8",
                "--exclude",
                "a*",
                "--exclude",
                "b",
                "--calibration-sequences",
                "3",
            ],
            {"precision": Int8(exclude=("a*", "b"), calibration_sequences=3)},
        ),
        (["--precision", "int8", "--head-bits", "8"], {"precision": Int8()}),
        (
            flags("--precision auto --max-kl 0.05 --asymmetric --exclude a"),
            {
                "precision": Auto(max_kl=0.05, asymmetric=True, exclude=("a",)),
                "options": ExportOptions(),
            },
        ),
        (flags("--precision auto --target-size 1.5"), {"precision": Auto(target_size=1_500_000)}),
        (
            [
                "--graphs",
                "split",
                "--attention",
                "portable",
                "--prefill-precision",
                "int8",
                "--attention-maps",
            ],
            {
                "options": ExportOptions(
                    graphs="split",
                    attention="portable",
                    prefill_precision="int8",
                    attention_maps=True,
                )
            },
        ),
        (
            ["--allow-cpu-nodes", "--max-kl", "0.5"],
            {"options": ExportOptions(allow_cpu_nodes=True, max_kl=0.5)},
        ),
        (
            flags("--accept-unknown a --accept-unknown rope_scaling.b"),
            {"options": ExportOptions(accept_unknown=("a", "rope_scaling.b"))},
        ),
        (
            ["--max-context", "7", "--calibration", "notes.txt", "--force"],
            {"max_context": 7, "calibration": Path("notes.txt"), "force": True},
        ),
    ],
)
def test_every_option_reaches_the_export(
    arguments: list[str], expected: dict[str, Any], called: dict[str, Any]
) -> None:
    done = run(*arguments)
    assert isinstance(done.exception, CalledError)
    assert {name: called[name] for name in expected} == expected
    assert (called["source"], called["out"]) == (Path("in"), Path("out"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "rtn"], "precision: expected int8 or int4 with --method, got fp32."),
        (["--precision", "fp16", "--asymmetric", "--group-size", "32"], "--group-size, --asymm"),
        (["--calibration-sequences", "8"], "int8 or int4 with --calibration-sequences, got fp32"),
        (["--precision", "int8", "--head-bits", "4"], "head bits: expected 8 with int8, got 4."),
        (flags("--target-size 9"), "precision: expected auto with --target-size, got fp32."),
        (
            flags("--precision auto --max-kl 1 --head-bits 4"),
            "precision: expected int8 or int4 with --head-bits, got auto",
        ),
    ],
)
def test_option_of_other_weights_is_an_error(
    arguments: list[str], message: str, called: dict[str, Any]
) -> None:
    done = run(*arguments)
    assert isinstance(done.exception, OptionError)
    assert message in str(done.exception)
    assert not called
