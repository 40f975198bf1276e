"""Metrics in the text format of Prometheus.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from collections.abc import Iterator, Sequence
from operator import attrgetter

from ortolan.server.models import ServedModel

__all__ = ["metrics_text"]

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
    ("cache_bytes", "gauge", "Size of the prefix cache in memory.", "cache.bytes"),
    ("inputs_total", "counter", "Inputs of encoders.", "inputs"),
    ("input_tokens_total", "counter", "Tokens of encoders' inputs.", "tokens"),
)
"""Name, kind, description and attribute of the statistics; encoders have others than decoders."""


def metrics_text(models: Sequence[ServedModel]) -> str:
    """Load and totals of models."""
    stats = [(served, served.service.stats()) for served in models]
    lines: list[str] = []
    for name, kind, text, path in _METRICS:
        value = attrgetter(path)
        first, *_ = path.split(".")
        values = [(_labels(served), value(stat)) for served, stat in stats if hasattr(stat, first)]
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
