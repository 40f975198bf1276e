from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from ortolan.cli.export import command
from ortolan.export import pipeline
from ortolan.export.errors import OptionError
from ortolan.export.options import Auto, ExportOptions, Int4, Int8


class CalledError(Exception):
    """Replaces an export."""


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments of the export that the command starts."""
    given: dict[str, Any] = {}

    def export(source: Path, out: Path, **options: Any) -> None:
        given.update(options, source=source, out=out)
        raise CalledError

    monkeypatch.setattr(pipeline, "export", export)
    return given


def run(*arguments: str) -> Any:
    return CliRunner().invoke(command, ["in", "out", *arguments])


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("", {"precision": None, "device": "cpu", "force": False, "options": ExportOptions()}),
    ("--precision fp16 --device cuda", {"precision": "fp16", "device": "cuda"}),
    ("--precision int4", {"precision": Int4()}),
    (
        "--precision int4 --group-size 32 --method rtn --head-bits 8 --asymmetric",
        {"precision": Int4(group_size=32, method="rtn", head_bits=8, asymmetric=True)},
    ),
    (
        "--precision int8 --exclude a* --exclude b --calibration-sequences 3",
        {"precision": Int8(exclude=("a*", "b"), calibration_sequences=3)},
    ),
    ("--precision int8 --head-bits 8", {"precision": Int8()}),
    (
        "--precision auto --max-kl 0.05 --asymmetric --exclude a",
        {
            "precision": Auto(max_kl=0.05, asymmetric=True, exclude=("a",)),
            "options": ExportOptions(),
        },
    ),
    ("--precision auto --target-size 1.5", {"precision": Auto(target_size=1_500_000)}),
    (
        "--graphs split --attention portable --prefill-precision int8 --attention-maps",
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
        "--allow-cpu-nodes --max-kl 0.5",
        {"options": ExportOptions(allow_cpu_nodes=True, max_kl=0.5)},
    ),
    (
        "--accept-unknown a --accept-unknown rope_scaling.b",
        {"options": ExportOptions(accept_unknown=("a", "rope_scaling.b"))},
    ),
    (
        "--revision v1 --adapter org/adapter",
        {"revision": "v1", "options": ExportOptions(adapter="org/adapter")},
    ),
    (
        "--max-context 7 --calibration notes.txt --force",
        {"max_context": 7, "calibration": Path("notes.txt"), "force": True},
    ),
    (
        "--proof full --tokenizer t.json --text-only --via transformers --mtp --allow-poor",
        {
            "options": ExportOptions(
                proof="full",
                tokenizer=Path("t.json"),
                text_only=True,
                via="transformers",
                mtp=True,
                allow_poor=True,
            )
        },
    ),
    ("--cache int8", {"options": ExportOptions(cache="int8")}),
    ("--precision int4 --effort best", {"precision": Int4(effort="best")}),
]


@pytest.mark.parametrize(("arguments", "expected"), OPTIONS)
def test_every_option_reaches_the_export(
    arguments: str, expected: dict[str, Any], called: dict[str, Any]
) -> None:
    done = run(*arguments.split())
    assert isinstance(done.exception, CalledError)
    assert {name: called[name] for name in expected} == expected
    assert (called["source"], called["out"]) == ("in", Path("out"))


def test_no_option_is_left_out() -> None:
    passed = {word for arguments, _ in OPTIONS for word in arguments.split()}
    options = {param.opts[-1] for param in command.params if isinstance(param, click.Option)}
    elsewhere = {"--json", "--layout", "--help-all"}  # they change what is printed or written
    assert options - passed <= elsewhere


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--method rtn", ("--method", "--precision int4")),
        ("--precision fp16 --asymmetric --group-size 32", ("--group-size", "--asymmetric", "fp16")),
        ("--precision fp32 --calibration-sequences 8", ("--calibration-sequences", "fp32")),
        ("--precision int8 --head-bits 4", ("head", "int8")),
        ("--target-size 9", ("--target-size", "auto")),
        ("--precision auto --max-kl 1 --head-bits 4", ("--head-bits", "auto")),
    ],
)
def test_option_of_other_weights_is_an_error(
    arguments: str, words: tuple[str, ...], called: dict[str, Any]
) -> None:
    done = run(*arguments.split())
    assert isinstance(done.exception, OptionError)
    assert all(word in str(done.exception) for word in words)
    assert not called
