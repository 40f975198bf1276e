"""Metrics count what requests cost."""

import httpx2
import pytest
from tests.server.calls import post_ok

BODY = {"prompt": "Metrics count the cached tokens of prompts. " * 4, "max_tokens": 3}
BODY |= {"ignore_eos": True}


@pytest.fixture
def lines(client: httpx2.Client) -> list[str]:
    for _ in range(2):
        post_ok(client, "/v1/completions", BODY)
    return client.get("/metrics").text.splitlines()


def values(lines: list[str], name: str) -> list[float]:
    mine = [x for x in lines if x.startswith(f"ortolan_{name}") and 'model="fp32"' in x]
    return [float(line.rpartition(" ")[2]) for line in mine]


def test_metrics_count_tokens(lines: list[str]) -> None:
    assert values(lines, "slots{") == [4]
    assert values(lines, "new_tokens_total{")[0] >= 6
    assert values(lines, "cached_tokens_total{")[0] > 0
    assert "# TYPE ortolan_new_tokens_total counter" in lines


@pytest.mark.parametrize(
    ("name", "least"),
    [("queue_seconds", 2), ("time_to_first_token_seconds", 2), ("time_between_tokens_seconds", 4)],
)
def test_metrics_have_histograms_of_times(lines: list[str], name: str, least: int) -> None:
    assert f"# TYPE ortolan_{name} histogram" in lines
    *buckets, total, count = values(lines, f"{name}_")
    assert sum(f'{name}_bucket{{model="fp32",le="+Inf"}}' in line for line in lines) == 1
    assert buckets == sorted(buckets)
    assert buckets[-1] == count >= least
    assert total > 0
