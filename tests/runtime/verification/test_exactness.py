from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.runtime import packed_bundles

from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.exactness import Exactness
from ortolan.runtime.verification.certificate_files import read_certificate
from ortolan.runtime.verification.exactness import check_exact
from ortolan.runtime.verification.replay import verify
from ortolan.runtime.verification.report import ExactReport, Rule


def exactness(path: Path, kind: str) -> ExactReport | None:
    bundle = packed_bundles.write(path / kind, kind, group=64)
    return check_exact(Engine(bundle, threads=1), read_certificate(bundle))


@pytest.mark.parametrize("kind", ["fp32", "recurrent", "int4", "int8-prefill"])
def test_sequences_are_bit_identical_alone_and_among_others(tmp_path: Path, kind: str) -> None:
    counts: dict[Rule, int] = {"rows": 10, "parts": 3, "restored": 1}
    assert exactness(tmp_path, kind) == ExactReport(comparisons=14, different=(), tried=counts)


def test_rules_that_do_not_apply_are_left_out(tmp_path: Path) -> None:
    report = exactness(tmp_path, "by-token")
    assert report is not None
    assert report.tried == {"rows": 10, "restored": 1}
    assert "10 sequences" in report.summary
    assert "prefix" in report.summary


@pytest.mark.parametrize(
    ("kind", "wrong", "rule"),
    [
        ("int4", {"rows_multiple": 1}, "rows"),
        ("int8-prefill", {"depends_on_chunks": False}, "parts"),
    ],
)
def test_rows_and_chunks_that_matter_are_detected(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    wrong: dict[str, Any],
    rule: Rule,
) -> None:
    right = Exactness.of

    def changed(*args: Any, **kwargs: Any) -> Exactness:
        return replace(right(*args, **kwargs), **wrong)

    monkeypatch.setattr(Exactness, "of", changed)
    report = exactness(tmp_path, kind)
    assert report is not None
    assert report.different == (rule,)
    alone = f"{rule} differ from a sequence alone: serve with --fast (mode='fast')"
    assert report.summary == alone
    wrong["mixes_rows"] = True
    assert exactness(tmp_path / "mixed", kind) is None


def test_parts_are_compared_alone_and_among_others_only_if_the_whole_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, part = (packed_bundles.write(tmp_path / name, "fp32") for name in ("whole", "part"))
    parts = {whole.path: {"head": part}}
    replay = import_module("ortolan.runtime.verification.replay")
    monkeypatch.setattr(replay, "open_parts", lambda bundle: parts.get(bundle.path, {}))
    for exact in (True, False):
        report = verify(whole.path, exact=exact, isolate=False)
        assert report.head is not None
        assert (report.exact is not None, report.head.exact is not None) == (exact, exact)


def test_a_difference_is_reported_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packed_bundles.write(tmp_path / "bundle", "fp32").path
    replay = import_module("ortolan.runtime.verification.replay")
    different = ExactReport(comparisons=1, different=("rows",))
    monkeypatch.setattr(replay, "check_exact", lambda *_: different)
    report = verify(path, isolate=False)
    assert (report.verdict, report.exact) == ("PASS", different)
    assert verify(path, exact=False, isolate=False).exact is None
