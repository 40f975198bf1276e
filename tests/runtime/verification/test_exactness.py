"""`verify` tries whether texts are the same alone and among others."""

from importlib import import_module
from pathlib import Path

import pytest
from tests.runtime import packed_bundles

from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.verification.certificate_files import read_certificate
from ortolan.runtime.verification.exactness import check_exact
from ortolan.runtime.verification.replay import verify
from ortolan.runtime.verification.report import ExactReport, Rule


def tried(path: Path, kind: str) -> ExactReport | None:
    bundle = packed_bundles.write(path / kind, kind, group=64)
    return check_exact(Engine(bundle, threads=1), read_certificate(bundle))


@pytest.mark.parametrize("kind", ["fp32", "recurrent", "int4", "int8-prefill"])
def test_texts_are_the_same_alone_and_among_others(tmp_path: Path, kind: str) -> None:
    counts: dict[Rule, int] = {"rows": 10, "parts": 3, "restored": 1}
    assert tried(tmp_path, kind) == ExactReport(comparisons=14, different=(), tried=counts)


def test_only_what_says_something_about_a_model_is_compared_and_named(tmp_path: Path) -> None:
    report = tried(tmp_path, "by-token")
    assert report is not None
    assert report.tried == {"rows": 10, "restored": 1}
    assert report.summary == (
        "the bundle against itself, to the bit: 10 texts next to others and alone, "
        "1 prompt from a prefix and whole"
    )


def test_rows_that_depend_on_their_number_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "rows_multiple", 1)
    report = tried(tmp_path, "int4")
    assert report is not None
    assert report.different == ("rows",)
    assert report.summary == "rows differ from the same text alone: serve mode='fast'"


def test_parts_that_matter_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "parts_matter", property(lambda _: False))
    report = tried(tmp_path, "int8-prefill")
    assert report is not None
    assert report.different == ("parts",)


def test_experts_are_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "mixes_rows", property(lambda _: True))
    assert tried(tmp_path, "fp32") is None


def test_what_differs_is_said_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packed_bundles.write(tmp_path / "bundle", "fp32").path
    replay = import_module("ortolan.runtime.verification.replay")
    different = ExactReport(comparisons=1, different=("rows",))
    monkeypatch.setattr(replay, "check_exact", lambda *_: different)
    report = verify(path, isolate=False)
    assert (report.verdict, report.exact) == ("PASS", different)
    assert verify(path, exact=False, isolate=False).exact is None
