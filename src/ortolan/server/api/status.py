"""`/health`, `/ready` and `/metrics`."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any

from starlette.responses import PlainTextResponse

from ortolan.runtime.generation.histogram import BOUNDS, Histogram
from ortolan.server.call import Call
from ortolan.server.errors import ApiError
from ortolan.server.models import ServedModel

_METRICS = {
    "slots": ("gauge", "Sequences that are computed together.", "slots"),
    "requests_running": ("gauge", "Requests that hold a slot.", "running"),
    "requests_waiting": ("gauge", "Requests without a slot.", "waiting"),
    "requests_finished_total": ("counter", "Requests that have ended.", "finished"),
    "prompt_tokens_total": ("counter", "Prompt tokens.", "prompt_tokens"),
    "cached_tokens_total": ("counter", "Prompt tokens from the prefix cache.", "cached_tokens"),
    "new_tokens_total": ("counter", "Generated tokens.", "new_tokens"),
    "drafted_tokens_total": ("counter", "Guessed tokens.", "drafted_tokens"),
    "accepted_tokens_total": ("counter", "Guessed tokens that were right.", "accepted_tokens"),
    "cache_bytes": ("gauge", "Size of the prefix cache in memory.", "cache.bytes"),
    "state_bytes": ("gauge", "Size of the states in memory, without the cache.", "state_bytes"),
    "failed_calls_total": ("counter", "Failed, repeated calls of the model.", "failed_calls"),
    "inputs_total": ("counter", "Inputs of encoders.", "inputs"),
    "input_tokens_total": ("counter", "Tokens of encoders' inputs.", "tokens"),
    "requests_refused_total": ("counter", "Rejected requests.", "refused"),
    "requests_failed_total": ("counter", "Accepted requests that ended with an error.", "failed"),
    "queue_seconds": ("histogram", "Time until a request gets a slot.", "queued_s"),
    "time_to_first_token_seconds": ("histogram", "Time to the first token.", "first_token_s"),
    "time_between_tokens_seconds": ("histogram", "Time between two new tokens.", "gaps_s"),
}
"""Kind, description and attribute of the statistics; encoders have others than decoders."""


async def health(_: Call) -> dict[str, str]:
    """Tell that the process answers."""
    return {"status": "ok"}


async def ready(call: Call) -> dict[str, str]:
    """Tell whether a model is loaded, and all of them answer. If not, load what can be loaded."""
    if failing := call.models.revive():
        message = f"The latest requests to {', '.join(failing)} failed. See the server's log."
        raise ApiError(message, code="failing", status=503)
    if not call.models.loaded:
        raise ApiError("No model is loaded yet.", code="loading", status=503)
    return {"status": "ready"}


async def metrics(call: Call) -> PlainTextResponse:
    """Load and totals of the loaded models, for Prometheus.

    Source: https://prometheus.io/docs/instrumenting/exposition_formats/
    """
    text = "\n".join(_lines(call.models.loaded))
    return PlainTextResponse(f"{text}\n", media_type="text/plain; version=0.0.4")


def _lines(models: Sequence[ServedModel]) -> Iterator[str]:
    stats = [(served.name, served.service.stats()) for served in models]
    for name, (kind, text, path) in _METRICS.items():
        yield from _head(name, kind, text)
        for model, stat in stats:
            if hasattr(stat, path.partition(".")[0]):
                yield from _samples(name, model, attrgetter(path)(stat))
    yield from _head("failing", "gauge", "Whether the latest requests failed.")
    for served in models:
        yield from _samples("failing", served.name, int(served.service.is_failing))


def _head(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP ortolan_{name} {text}", f"# TYPE ortolan_{name} {kind}"


def _samples(name: str, model: str, value: Any) -> Iterator[str]:
    """Samples of a number, of counts by reason, or of a histogram."""
    match value:
        case Histogram():
            bounds = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
            for bound, count in zip(bounds, accumulate(value.counts), strict=True):
                yield f"ortolan_{name}_bucket{_labels(model=model, le=bound)} {count}"
            yield f"ortolan_{name}_sum{_labels(model=model)} {value.total_s}"
            yield f"ortolan_{name}_count{_labels(model=model)} {value.count}"
        case dict():
            for reason, count in sorted(value.items()):
                yield f"ortolan_{name}{_labels(model=model, reason=reason)} {count}"
        case _:
            yield f"ortolan_{name}{_labels(model=model)} {value}"


def _labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
