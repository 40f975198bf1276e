"""Totals and times of a service."""

import pytest
from tests.runtime.serving.served import settle

from ortolan.runtime import Decoder, PromptLookup
from ortolan.runtime.generation.histogram import BOUNDS, Histogram


def test_times_are_counted_in_the_first_bucket_that_holds_them() -> None:
    times = Histogram()
    for seconds in (0.0, 0.001, 0.0011, 60.0, 61.0):
        times.add(seconds)
    assert times.counts == [2, 1, *[0] * (len(BOUNDS) - 3), 1, 1]
    assert times.count == 5
    assert times.total_s == pytest.approx(121.0021)
    before = times.copy()
    times.add(1.0)
    assert (before.count, times.count) == (5, 6)


def test_stats_count_times_drafts_and_states(model: Decoder) -> None:
    with model.serve(slots=2) as service:
        tickets = [
            service.submit("abab" * 5, max_new_tokens=9, ignore_eos=True, draft=draft)
            for draft in (None, None, PromptLookup())
        ]
        completions = [ticket.completion() for ticket in tickets]
        settle(service)
        stats = service.stats()
        timings = [completion.timings for completion in completions]
        assert stats.queued_s.count == stats.first_token_s.count == 3
        assert stats.gaps_s.count == 3 * 8
        assert stats.gaps_s.total_s == pytest.approx(sum(one.decode_s for one in timings))
        first_s = sum(one.time_to_first_token_s for one in timings)
        assert stats.first_token_s.total_s == pytest.approx(first_s)
        assert 0 <= stats.queued_s.total_s <= first_s
        assert stats.drafted_tokens == sum(one.drafted_tokens for one in timings) > 0
        assert stats.accepted_tokens == sum(one.accepted_tokens for one in timings)
        assert stats.state_bytes == 0
        with service.submit("abc", ignore_eos=True) as running:
            next(running)
            next(running)
            assert service.stats().state_bytes >= 3 * model.manifest.state_bytes("append")
        before = service.stats()
        service.submit("abc", max_new_tokens=2, ignore_eos=True).completion()
        settle(service)
        assert service.stats().first_token_s.count > before.first_token_s.count


def test_a_request_that_never_ran_has_no_times(model: Decoder) -> None:
    service = model.serve(slots=2)
    tickets = [service.submit("a" * 900, max_new_tokens=90) for _ in range(9)]
    service.close(0)
    assert all(ticket.done for ticket in tickets)
    stats = service.stats()
    assert stats.finished == 9
    assert stats.queued_s.count < 9
    assert stats.first_token_s.count <= stats.queued_s.count
