from functools import partial

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.tiny_decoder import (
    CONTEXT,
    HEAD_WIDTH,
    HEADS,
    KV_HEADS,
    LAYERS,
    VOCABULARY,
    WIDTH,
    write_bundle,
)

from ortolan.runtime.bench import measure as benchmark
from ortolan.runtime.bench.measure import Case, cases, measure
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.generation.session import Session
from ortolan.runtime.loading import load
from ortolan.runtime.machine import bandwidth
from ortolan.runtime.machine import memory as process_memory

SPEED = 1e15
"""Bandwidth in bytes per second, more than a tiny model reads."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = tmp_path_factory.mktemp("benchmark") / "bundle"
    return load(write_bundle(folder).path, Decoder, threads=1)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Measurements of the bandwidth and appended tokens, in order."""
    seen: list[str] = []
    append = Session.append

    def probed(threads: int, size: int) -> float:
        seen.append("bandwidth")
        return SPEED

    def appended(self: Session, ids: list[int]) -> object:
        seen.append(f"{len(self)}+{len(ids)}")
        return append(self, ids)

    monkeypatch.setattr(bandwidth, "read_bandwidth", probed)
    monkeypatch.setattr(bandwidth, "last_level_cache", lambda: 1)
    monkeypatch.setattr(bandwidth, "available_memory", lambda: 1 << 40)
    monkeypatch.setattr(process_memory, "reset_peak", lambda: True)
    monkeypatch.setattr(Session, "append", appended)
    return seen


CASES = cases([8], [2], [0, 4])


def test_repetitions_alternate_over_the_cases_between_two_bandwidth_measurements(
    model: Decoder, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks = iter([20, 30])
    monkeypatch.setattr(process_memory, "peak_memory", lambda: next(peaks))
    seen: list[tuple[int, int]] = []
    result = measure(
        model, CASES, repetitions=2, progress=lambda done, total: seen.append((done, total))
    )
    first_depth = ["0+8", "0+1", "1+1"]
    second_depth = ["4+8", "4+1", "5+1"]
    assert events == [
        "bandwidth",
        *(*first_depth, "0+4", *second_depth),
        *(first_depth + second_depth) * 2,
        "bandwidth",
    ]
    assert seen == [(done, 12) for done in range(1, 13)]
    assert [case.name for case in result.cases] == ["pp8", "tg2", "pp8 @ d4", "tg2 @ d4"]
    for case in result.cases:  # the first run does not count
        assert len(case.speed.runs) == 2
        assert min(case.speed.runs) <= case.speed.median <= max(case.speed.runs)
    assert result.peak_memory_bytes == 30


def test_the_fastest_bandwidth_counts_and_is_measured_last_if_the_peak_cannot_be_reset(
    model: Decoder, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = iter([3e15, 2e15])
    with monkeypatch.context() as patch:
        patch.setattr(bandwidth, "read_bandwidth", lambda threads, size: next(speeds))
        result = measure(model, [Case(kind="pp", tokens=4)], repetitions=1).bandwidth
    assert result is not None
    assert result.bytes_per_second == 3e15
    events.clear()
    monkeypatch.setattr(process_memory, "reset_peak", lambda: False)
    measure(model, [Case(kind="pp", tokens=4)], repetitions=1)
    assert events == ["0+4", "0+4", "bandwidth"]


def test_replaced_states_are_recomputed_for_every_run(
    tmp_path_factory: pytest.TempPathFactory, events: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("benchmark") / "recurrent"
    recurrent = load(write_bundle(folder, recurrent=True).path, threads=1)
    result = measure(recurrent, [Case(kind="tg", tokens=2, depth=4)], repetitions=2)
    assert events[1:-1] == ["0+4", "4+1", "5+1"] * 3
    assert result.cases[0].speed.mean > 0


@pytest.mark.parametrize("split", [False, True])
def test_bytes_per_token_are_those_of_the_graph_that_decodes(
    tmp_path_factory: pytest.TempPathFactory, events: list[str], split: bool
) -> None:
    folder = tmp_path_factory.mktemp("benchmark") / "bundle"
    result = measure(
        load(write_bundle(folder, split=split).path, threads=1),
        [Case(kind="tg", tokens=3, depth=6)],
        repetitions=1,
    )
    projections = (HEADS + 2 * KV_HEADS + HEADS) * HEAD_WIDTH * WIDTH
    rows = WIDTH + LAYERS * HEAD_WIDTH  # an embedding, and half of each of a cosine and a sine
    weights = 4 * (LAYERS * projections + WIDTH * VOCABULARY + rows)
    cache = 4 * 2 * LAYERS * KV_HEADS * HEAD_WIDTH
    assert (result.weights.bytes, result.cache_bytes_per_token) == (weights, cache)
    assert result.weights.head_bytes == 4 * WIDTH * VOCABULARY
    read = result.cases[0].generation
    assert read is not None
    assert read.bytes_per_token == weights + cache * 8
    assert read.bandwidth_share == pytest.approx(read.bytes_per_second / SPEED)


# --- notes and advice -------------------------------------------------------------------------

GENERATE = [Case(kind="tg", tokens=2)]


@pytest.mark.parametrize(
    ("name", "value", "note"),
    [
        ("last_level_cache", 1, ""),
        ("last_level_cache", 1 << 30, "tg2: everything that a token reads fits"),
        ("available_memory", 800_000_000, "bandwidth measured over 200 MB, not 537 MB"),
        ("available_memory", 1, "bandwidth not measured"),
        ("read_bandwidth", 1.0, "tg2: reads faster than memory"),
    ],
)
def test_notes_explain_unusual_figures(
    model: Decoder,
    events: list[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: float,
    note: str,
) -> None:
    monkeypatch.setattr(bandwidth, name, lambda *_: value)
    notes = measure(model, GENERATE, repetitions=1).notes
    assert len(notes) == (note != "")
    assert all(text.startswith(note) for text in notes)


def test_advice_is_about_the_run(
    model: Decoder, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "physical_cores", lambda: 2)
    result = measure(model, [*cases([4], []), *GENERATE], repetitions=1)
    assert [advice.rule for advice in result.advice] == [
        "float weights",
        "idle cores",
        "not packed",
    ]
    prompts = measure(model, cases([4], []), repetitions=1)
    assert [advice.rule for advice in prompts.advice] == ["idle cores", "not packed"]


def test_wrong_requests_are_rejected_before_anything_runs(
    model: Decoder, events: list[str], snapshot: SnapshotAssertion
) -> None:
    long = [*GENERATE, Case(kind="pp", tokens=CONTEXT + 1)]
    for chosen, repetitions in ((cases([0], [0]), 1), (GENERATE, 0), (long, 1)):
        assert refusal(partial(measure, model, chosen, repetitions=repetitions)) == snapshot
    assert events == []
