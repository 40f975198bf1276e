"""Metrics in the text format of Prometheus.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ortolan.server.models import ServedModel

__all__ = ["metrics_text"]

_METRICS: tuple[tuple[str, str, str, Callable[[Any], float]], ...] = (
    ("slots", "gauge", "Sequences that are computed together.", lambda s: s.slots),
    ("requests_running", "gauge", "Requests that hold a slot.", lambda s: s.running),
    ("requests_waiting", "gauge", "Requests without a slot.", lambda s: s.waiting),
    ("requests_finished_total", "counter", "Requests that have ended.", lambda s: s.finished),
    ("prompt_tokens_total", "counter", "Prompt tokens.", lambda s: s.prompt_tokens),
    (
        "cached_tokens_total",
        "counter",
        "Prompt tokens from the prefix cache.",
        lambda s: s.cached_tokens,
    ),
    ("new_tokens_total", "counter", "Generated tokens.", lambda s: s.new_tokens),
    ("cache_bytes", "gauge", "Size of the prefix cache in memory.", lambda s: s.cache.bytes),
)


def metrics_text(models: Sequence[ServedModel]) -> str:
    """Load and totals of models."""
    stats = [(served, served.service.stats()) for served in models]
    lines: list[str] = []
    for name, kind, text, value in _METRICS:
        values = [(_labels(served), value(stat)) for served, stat in stats]
        lines += _metric(name, kind, text, values)
    refused = [
        (_labels(served, reason=code), count)
        for served, stat in stats
        for code, count in sorted(stat.refused.items())
    ]
    lines += _metric("requests_refused_total", "counter", "Rejected requests.", refused)
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, text: str, values: Sequence[tuple[str, float]]) -> Iterator[str]:
    yield f"# HELP ortolan_{name} {text}"
    yield f"# TYPE ortolan_{name} {kind}"
    for labels, value in values:
        yield f"ortolan_{name}{labels} {value}"


def _labels(served: ServedModel, **others: str) -> str:
    values = {"model": served.name, **others}
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in values.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
