from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.tiny_decoder import PROBES, TinyDecoder, write_bundle
from tests.runtime.verification.conftest import logits_of

from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.errors import BundleFileError
from ortolan.runtime.verification.certificate import Certificate
from ortolan.runtime.verification.comparison import divergence, summarize
from ortolan.runtime.verification.replay import replay, verify
from ortolan.runtime.verification.report import Divergence, Report, Thresholds

POISON = 13
TOTAL = sum(PROBES)


@pytest.fixture(scope="module")
def engine(tiny: TinyDecoder) -> Engine:
    return Engine(open_bundle(tiny.path))


# --- verdicts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"split": True}, {"recurrent": True}])
def test_an_undamaged_bundle_passes(tmp_path: Path, options: dict[str, bool]) -> None:
    report = verify(write_bundle(tmp_path / "bundle", **options).path, isolate=False)  # type: ignore[arg-type]
    assert report.verdict == "PASS"
    assert (report.top1_agreement, report.near_ties, report.non_finite) == (1.0, 0, 0)
    assert report.first_divergence is None
    assert 0 < report.max_abs_delta < 1e-3
    assert report.mean_kl is not None
    assert report.max_kl is not None
    assert report.mean_kl <= report.max_kl < 1e-6
    assert (report.kind, report.output, report.mean_cosine) == ("decoder", "logits", None)
    assert report.device == "cpu"
    weights = report.weights
    assert weights is not None
    assert weights.wrong == ()
    assert 30 * weights.largest_error < weights.bound


def test_every_way_to_compute_is_replayed(engine: Engine, certificate: Certificate) -> None:
    phases = replay(engine, certificate).phases
    assert {name: phase.positions for name, phase in phases.items()} == {
        "prefill": 5 + 40 + 150,
        "decode": 5 + 40 + 64,  # only the end of the long probe
        "chunked": 150,
        "batch": 2 * 4,  # the last tokens of the short probes
    }


def test_rows_that_depend_on_each_other_are_detected(
    engine: Engine, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Runner.step

    def mixed(runner: Runner, tokens: Sequence[int]) -> None:
        step(runner, tokens)
        runner.logits_BV[:] = runner.logits_BV.mean(0)

    monkeypatch.setattr(Runner, "step", mixed)
    report = replay(engine, certificate)
    assert report.verdict == "FAIL"
    assert report.first_divergence is not None
    assert report.first_divergence.phase == "batch"


def test_progress_ends_at_the_total(engine: Engine, certificate: Certificate) -> None:
    calls: list[tuple[int, int]] = []
    replay(engine, certificate, progress=lambda *call: calls.append(call))
    done, totals = zip(*calls, strict=True)
    assert list(done) == sorted(done)
    assert set(totals) == {195 + 109 + 150 + 8} == {done[-1]}


def changed(certificate: Certificate, position: int, delta: float) -> Certificate:
    top_logits = logits_of(certificate).top_logits.copy()
    top_logits[position, 0] += delta
    return replace(certificate, reference=replace(logits_of(certificate), top_logits=top_logits))


def test_a_logit_beyond_the_tolerance_fails_and_is_located(
    engine: Engine, certificate: Certificate
) -> None:
    report = replay(engine, changed(certificate, 5 + 7, 0.5))
    assert report.verdict == "FAIL"
    assert report.max_abs_delta == pytest.approx(0.5, rel=1e-3)
    assert report.first_divergence == Divergence(probe="tokens 40", position=7, phase="prefill")


def test_tolerances_are_of_the_largest_logit_and_of_the_mean_kl(
    engine: Engine, certificate: Certificate
) -> None:
    reference = logits_of(certificate)
    scale = float(np.abs(reference.top_logits).max())
    assert scale > 2
    louder = replace(reference, log_sum_exp=reference.log_sum_exp + np.float32(0.1))
    for moved, largest, mean, verdict in (
        (changed(certificate, 50, 0.9 * 0.01 * scale), 0.01, 1.0, "PASS"),
        (changed(certificate, 50, 1.1 * 0.01 * scale), 0.01, 1.0, "FAIL"),
        (replace(certificate, reference=louder), 1.0, 1.0, "PASS"),
        (replace(certificate, reference=louder), 1.0, 1e-5, "FAIL"),
    ):
        loose = Thresholds(max_abs_delta=largest, mean_kl=mean, near_tie=0.0)
        assert replay(engine, replace(moved, thresholds=loose)).verdict == verdict


def swapped(certificate: Certificate, position: int, gap: float) -> Certificate:
    """Exchange the two best tokens of a position, `gap` apart."""
    reference = logits_of(certificate)
    top_ids, top_logits = reference.top_ids.copy(), reference.top_logits.copy()
    top_ids[position, :2] = top_ids[position, 1::-1]
    top_logits[position, 0] = top_logits[position, 1] + np.float32(gap)
    swapped = replace(reference, top_ids=top_ids, top_logits=top_logits)
    return replace(certificate, reference=swapped)


@pytest.mark.parametrize(
    ("gap", "verdict", "near_ties"), [(0.01, "AMBIGUOUS", 3), (0.1, "FAIL", 0)]
)
def test_only_near_ties_may_change_places(
    engine: Engine, certificate: Certificate, gap: float, verdict: str, near_ties: int
) -> None:
    loose = Thresholds(max_abs_delta=100.0, mean_kl=100.0, near_tie=0.05)
    last = TOTAL - 1  # in prefill, decode and chunked
    report = replay(engine, replace(swapped(certificate, last, gap), thresholds=loose))
    assert (report.verdict, report.near_ties) == (verdict, near_ties)
    words = "AMBIGUOUS (3 near ties): " if near_ties else "FAIL: "
    assert report.device_summary.startswith(words)
    assert report.top1_agreement == pytest.approx(1 - 3 / 462)
    assert report.first_divergence == Divergence(probe="tokens 150", position=149, phase="prefill")


def test_non_finite_logits_fail(tmp_path: Path) -> None:
    report = verify(write_bundle(tmp_path / "bundle", poisoned=POISON).path, isolate=False)
    assert report.verdict == "FAIL"
    assert report.non_finite > 0
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
    assert report.first_divergence is not None


def test_a_fault_in_decode_steps_is_located(
    engine: Engine, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    step: Callable[..., None] = Runner.step

    def late(runner: Runner, tokens: Sequence[int]) -> None:
        """Overwrite the third token with the fourth."""
        is_fourth = runner.slots.lengths == [3]
        if is_fourth:
            runner.slots.lengths[0] = 2
        step(runner, tokens)
        if is_fourth:
            runner.slots.lengths[0] = 4

    monkeypatch.setattr(Runner, "step", late)
    report = replay(engine, certificate)
    assert report.verdict == "FAIL"
    assert report.phases["prefill"].max_abs_delta < 1e-3
    assert report.phases["chunked"].max_abs_delta < 1e-3
    assert report.phases["decode"].max_abs_delta > 0.1
    assert report.first_divergence == Divergence(probe="tokens 5", position=3, phase="decode")


def test_an_altered_file_is_detected_before_anything_runs(tmp_path: Path) -> None:
    tiny = write_bundle(tmp_path / "bundle")
    (blob,) = tiny.path.glob("weights-*.bin")
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    with pytest.raises(BundleFileError, match=blob.name):
        verify(tiny.path, isolate=False)


# --- figures ----------------------------------------------------------------------------------

logits = st.lists(st.floats(-30, 30, width=32), min_size=6, max_size=6)


@settings(max_examples=60, deadline=None)
@given(p=logits, q=logits, top_k=st.integers(2, 6))
def test_the_divergence_of_kept_tokens_is_a_lower_bound(
    p: list[float], q: list[float], top_k: int
) -> None:
    log_p, log_q = (np.array(x) - np.logaddexp.reduce(x) for x in (p, q))
    whole = float((np.exp(log_p) * (log_p - log_q)).sum())
    kept = np.argsort(-log_p)[:top_k]
    partial = divergence(log_p[kept][None], log_q[kept][None])
    assert 0 <= partial[0] <= whole + 1e-3 + whole * 1e-3
    equal = divergence(log_p[kept][None], log_p[kept][None])
    assert equal[0] == pytest.approx(0, abs=1e-12)


def test_the_divergence_of_all_tokens_is_exact() -> None:
    log_p, log_q = (np.log(np.array([x])) for x in ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]))
    expected = 0.5 * np.log(0.5 / 0.2) + 0.2 * np.log(0.2 / 0.5)
    assert divergence(log_p, log_q)[0] == pytest.approx(expected, rel=1e-4)


def test_rounding_of_stored_numbers_adds_no_divergence() -> None:
    logits = np.array([[25.0, 3.0, 1.0, -2.0]])  # one token is nearly certain
    stored = float(np.logaddexp.reduce(logits[0])) + np.array([-1e-6, 1e-6])
    exact = logits - np.logaddexp.reduce(logits[0])
    for log_sum_exp in stored:
        assert divergence(logits - log_sum_exp, exact)[0] < 1e-9


def test_a_summary_keeps_the_highest_logits_and_breaks_ties_by_id() -> None:
    summary = summarize(np.array([[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0]]), 3)
    assert summary.top_ids.tolist() == [[1, 2, 3], [0, 1, 2]]
    assert summary.top_logits.tolist() == [[3, 3, 2], [0, 0, 0]]
    sums = [np.log(np.exp([1, 3, 3, 2]).sum()), np.log(4)]
    assert summary.log_sum_exp.tolist() == pytest.approx(sums)
    assert summary.top_ids.dtype == np.int32
    assert summary.top_logits.dtype == summary.log_sum_exp.dtype == np.float32
