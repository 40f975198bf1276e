"""Metrics in the text format of Prometheus.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import attrgetter

from ortolan.runtime.generation.histogram import BOUNDS, Histogram
from ortolan.server.models import ServedModel

_METRICS = (
    ("slots", "gauge", "Sequences that are computed together.", "slots"),
    ("requests_running", "gauge", "Requests that hold a slot.", "running"),
    ("requests_waiting", "gauge", "Requests without a slot.", "waiting"),
    ("requests_finished_total", "counter", "Requests that have ended.", "finished"),
    ("prompt_tokens_total", "counter", "Prompt tokens.", "prompt_tokens"),
    (
        "cached_tokens_total",
        "counter",
        "Prompt tokens from the prefix cache.",
        "cached_tokens",
    ),
    ("new_tokens_total", "counter", "Generated tokens.", "new_tokens"),
    ("drafted_tokens_total", "counter", "Guessed tokens.", "drafted_tokens"),
    ("accepted_tokens_total", "counter", "Guessed tokens that were right.", "accepted_tokens"),
    ("cache_bytes", "gauge", "Size of the prefix cache in memory.", "cache.bytes"),
    ("state_bytes", "gauge", "Size of the states in memory, without the cache.", "state_bytes"),
    (
        "failed_calls_total",
        "counter",
        "Calls of the model that failed, and were repeated.",
        "failed_calls",
    ),
    ("inputs_total", "counter", "Inputs of encoders.", "inputs"),
    ("input_tokens_total", "counter", "Tokens of encoders' inputs.", "tokens"),
)
"""Name, kind, description and attribute of the statistics; encoders have others than decoders."""

_HISTOGRAMS = (
    ("queue_seconds", "Time until a request gets a slot.", "queued_s"),
    ("time_to_first_token_seconds", "Time until the first new token.", "first_token_s"),
    ("time_between_tokens_seconds", "Time between two new tokens of a request.", "gaps_s"),
)
"""Name, description and attribute of the statistics."""


def metrics_text(models: Sequence[ServedModel]) -> str:
    """Load and totals of models."""
    stats = [(served, served.service.stats()) for served in models]
    lines: list[str] = []
    for name, kind, text, path in _METRICS:
        value = attrgetter(path)
        first, *_ = path.split(".")
        values = [(_labels(served), value(stat)) for served, stat in stats if hasattr(stat, first)]
        lines += _metric(name, kind, text, values)
    for name, text, attribute in _HISTOGRAMS:
        lines += _head(name, "histogram", text)
        for served, stat in stats:
            if hasattr(stat, attribute):
                lines += _histogram(name, served, getattr(stat, attribute))
    failing = [(_labels(served), int(served.service.is_failing)) for served in models]
    lines += _metric("failing", "gauge", "Whether the latest requests failed.", failing)
    for name, text in (
        ("refused", "Rejected requests."),
        ("failed", "Accepted requests that ended with an error."),
    ):
        counts = [
            (_labels(served, reason=code), count)
            for served, stat in stats
            for code, count in sorted(getattr(stat, name).items())
        ]
        lines += _metric(f"requests_{name}_total", "counter", text, counts)
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP ortolan_{name} {text}", f"# TYPE ortolan_{name} {kind}"]


def _metric(name: str, kind: str, text: str, values: Sequence[tuple[str, float]]) -> Iterator[str]:
    yield from _head(name, kind, text)
    for labels, value in values:
        yield f"ortolan_{name}{labels} {value}"


def _histogram(name: str, served: ServedModel, times: Histogram) -> Iterator[str]:
    bounds = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
    for bound, count in zip(bounds, accumulate(times.counts), strict=True):
        yield f"ortolan_{name}_bucket{_labels(served, le=bound)} {count}"
    yield f"ortolan_{name}_sum{_labels(served)} {times.total_s}"
    yield f"ortolan_{name}_count{_labels(served)} {times.count}"


def _labels(served: ServedModel, **others: str) -> str:
    values = {"model": served.name, **others}
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in values.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
