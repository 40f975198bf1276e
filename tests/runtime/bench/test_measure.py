from functools import partial

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.tiny_decoder import CONTEXT, HEAD_WIDTH, KV_HEADS, LAYERS, write_bundle

from ortolan.runtime.bench.measure import Case, case_result, cases, measure
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.generation.session import Session
from ortolan.runtime.loading import load

CASES = cases([8], [2], [0, 4])
GENERATE = Case(kind="tg", tokens=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = tmp_path_factory.mktemp("benchmark") / "bundle"
    return load(write_bundle(folder).path, Decoder, threads=1)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tokens in the cache and appended ones, in order."""
    seen: list[str] = []
    append = Session.append

    def appended(self: Session, ids: list[int]) -> object:
        seen.append(f"{len(self)}+{len(ids)}")
        return append(self, ids)

    monkeypatch.setattr(Session, "append", appended)
    return seen


def test_repetitions_alternate_over_the_cases(model: Decoder, events: list[str]) -> None:
    seen: list[tuple[int, int]] = []
    result = measure(
        model, CASES, repetitions=2, progress=lambda done, total: seen.append((done, total))
    )
    first_depth = ["0+8", "0+1", "1+1"]
    second_depth = ["4+8", "4+1", "5+1"]
    assert events == [*first_depth, "0+4", *second_depth, *(first_depth + second_depth) * 2]
    assert seen == [(done, 12) for done in range(1, 13)]
    assert [case.name for case in result.cases] == ["pp8", "tg2", "pp8 @ d4", "tg2 @ d4"]
    for case in result.cases:  # the first run does not count
        assert len(case.speed.runs) == 2
        assert min(case.speed.runs) <= case.speed.median <= max(case.speed.runs)
    assert result.cache_bytes_per_token == 4 * 2 * LAYERS * KV_HEADS * HEAD_WIDTH
    assert result.peak_memory_bytes is None or result.peak_memory_bytes > 1 << 20


def test_replaced_states_are_recomputed_for_every_run(
    tmp_path_factory: pytest.TempPathFactory, events: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("benchmark") / "recurrent"
    recurrent = load(write_bundle(folder, recurrent=True).path, threads=1)
    result = measure(recurrent, [Case(kind="tg", tokens=2, depth=4)], repetitions=2)
    assert events == ["0+4", "4+1", "5+1"] * 3
    assert result.cases[0].speed.mean > 0


def test_speeds_are_those_of_each_run_and_not_of_the_mean_time() -> None:
    speed = case_result(Case(kind="pp", tokens=12), [1.0, 2.0, 4.0]).speed
    assert speed.runs == (12.0, 6.0, 3.0)
    assert (speed.mean, speed.median) == (7.0, 6.0)
    assert speed.deviation == pytest.approx(((25 + 1 + 16) / 2) ** 0.5)
    assert case_result(GENERATE, [2.0]).speed.deviation == 0.0


def test_wrong_requests_are_rejected_before_anything_runs(
    model: Decoder, events: list[str], snapshot: SnapshotAssertion
) -> None:
    long = [GENERATE, Case(kind="pp", tokens=CONTEXT + 1)]
    for chosen, repetitions in ((cases([0], [0]), 1), ([GENERATE], 0), (long, 1)):
        assert refusal(partial(measure, model, chosen, repetitions=repetitions)) == snapshot
    assert events == []
