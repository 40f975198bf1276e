"""From runs to numbers, and from numbers to a table and a file.

Speeds are medians. Ratios are medians of the ratios within each round, with their extremes: what
disturbs a whole round cancels. Does not measure.
"""

import dataclasses
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Self

from rounds import Run

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The medians of one peer. Speeds are in tokens per second."""

    peer: str
    prefill_per_s: float
    decode_per_s: float
    load_s: float
    peak_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How many times as fast as the other; above 1 is faster."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Summarize the ratios of all rounds."""
        ratios = list(values)
        return cls(median=median(ratios), low=min(ratios), high=max(ratios))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One peer against another, over the same rounds.

    Attributes:
        peer: who is measured.
        other: against whom.
        prefill: ratio of the prefill speeds.
        decode: ratio of the decode speeds.
        same_tokens: how many tokens both gave before they differed; all, if they compute the same.
    """

    peer: str
    other: str
    prefill: Ratio
    decode: Ratio
    same_tokens: int


def summarize(
    runs: Sequence[Run], loads: Mapping[str, float], *, prompt_tokens: int, new_tokens: int
) -> list[Summary]:
    """Return the medians of each peer, in the order of `loads`."""
    summaries = []
    for peer, load_s in loads.items():
        own = [run for run in runs if run.peer == peer]
        peaks = [run.peak_bytes for run in own if run.peak_bytes is not None]
        summaries.append(
            Summary(
                peer=peer,
                prefill_per_s=median(prompt_tokens / run.prefill_s for run in own),
                # The first token belongs to the prefill.
                decode_per_s=median((new_tokens - 1) / run.decode_s for run in own),
                load_s=load_s,
                peak_bytes=max(peaks, default=None),
            )
        )
    return summaries


def compare(runs: Sequence[Run], *, peer: str, other: str) -> Comparison:
    """Compare the runs of two peers round by round."""
    mine = {run.round: run for run in runs if run.peer == peer}
    theirs = {run.round: run for run in runs if run.peer == other}
    pairs = [(mine[number], theirs[number]) for number in sorted(mine)]
    return Comparison(
        peer=peer,
        other=other,
        prefill=Ratio.of(b.prefill_s / a.prefill_s for a, b in pairs),
        decode=Ratio.of(b.decode_s / a.decode_s for a, b in pairs),
        same_tokens=min(common_prefix(a.tokens, b.tokens) for a, b in pairs),
    )


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many items both begin with."""
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return length


def machine() -> Document:
    """Describe the processor and how busy it was."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }


def cells(summary: Summary, comparison: Comparison | None, *, new_tokens: int) -> list[str]:
    """Return the row of one peer; without a comparison its last cells are empty."""
    peak = "" if summary.peak_bytes is None else f"{summary.peak_bytes / 2**20:.0f}"
    row = [
        summary.peer,
        f"{summary.prefill_per_s:.0f}",
        f"{summary.decode_per_s:.1f}",
        f"{summary.load_s:.2f}",
        peak,
    ]
    if comparison is None:
        return [*row, "", "", ""]
    same = f"{comparison.same_tokens}/{new_tokens}"
    return [*row, str(comparison.prefill), str(comparison.decode), same]


def markdown(
    summaries: Sequence[Summary], comparisons: Sequence[Comparison], *, new_tokens: int
) -> str:
    """Return the numbers as a table, one row per peer."""
    against = {comparison.other: comparison for comparison in comparisons}
    first = summaries[0].peer
    rows = [
        ["", "prefill tok/s", "decode tok/s", "load s", "peak MiB"],
        ["---"] + ["---:"] * 7,
    ]
    rows[0] += [f"{first} prefill, times", f"{first} decode, times", "same tokens"]
    rows += [
        cells(summary, against.get(summary.peer), new_tokens=new_tokens) for summary in summaries
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def document(
    runs: Sequence[Run], summaries: Sequence[Summary], comparisons: Sequence[Comparison]
) -> Document:
    """Return everything but the tokens as JSON."""
    plain = [dataclasses.asdict(run) for run in runs]
    return {
        "summaries": [dataclasses.asdict(summary) for summary in summaries],
        "comparisons": [dataclasses.asdict(comparison) for comparison in comparisons],
        "runs": [{key: run[key] for key in run if key != "tokens"} for run in plain],
    }


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` as indented JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
