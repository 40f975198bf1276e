"""Summarize runs as numbers, tables and files.

Speeds are medians. Ratios are medians of the ratios within a round, with their range: disturbances
of a whole round cancel out.
"""

import dataclasses
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Self

from rounds import Loaded, Run

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Median speeds of one peer after prompts of one length, in tokens per second."""

    peer: str
    prompt_tokens: int
    prefill_per_s: float
    decode_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Relative speed; above 1 is faster."""

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
    """One peer compared with another over the same rounds.

    Attributes:
        peer: the first peer.
        other: the other peer.
        prompt_tokens: length of the prompts.
        prefill: ratio of the prefill speeds.
        decode: ratio of the decode speeds.
        same_tokens: length of the common prefix of their outputs.
    """

    peer: str
    other: str
    prompt_tokens: int
    prefill: Ratio
    decode: Ratio
    same_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Results of a measurement; the first peer is compared with each of the others.

    Attributes:
        speeds: of each peer, by prompt length.
        footprints: of each peer.
        comparisons: of the first peer with each of the others, by prompt length.
        mean_kl: KL(float32 || peer) in nats, for the peers whose logits were compared.
    """

    speeds: tuple[Speed, ...]
    footprints: tuple[Document, ...]
    comparisons: tuple[Comparison, ...]
    mean_kl: Mapping[str, float] = field(default_factory=dict)


def summarize(
    runs: Sequence[Run],
    loaded: Mapping[str, Loaded],
    *,
    new_tokens: int,
    mean_kl: Mapping[str, float] | None = None,
) -> Results:
    """Summarize runs, with peers in the order of `loaded` and lengths in that of the runs."""
    lengths = list(dict.fromkeys(run.prompt_tokens for run in runs))
    first, *others = loaded
    return Results(
        speeds=tuple(
            speed(runs, peer=peer, prompt_tokens=length, new_tokens=new_tokens)
            for length in lengths
            for peer in loaded
        ),
        footprints=tuple(footprint(runs, peer, seen) for peer, seen in loaded.items()),
        comparisons=tuple(
            compare(runs, peer=first, other=other, prompt_tokens=length)
            for length in lengths
            for other in others
        ),
        mean_kl=dict(mean_kl or {}),
    )


def speed(runs: Sequence[Run], *, peer: str, prompt_tokens: int, new_tokens: int) -> Speed:
    """Medians of one peer after prompts of one length."""
    own = [run for run in runs if (run.peer, run.prompt_tokens) == (peer, prompt_tokens)]
    return Speed(
        peer=peer,
        prompt_tokens=prompt_tokens,
        prefill_per_s=median(prompt_tokens / run.prefill_s for run in own),
        # The first token belongs to the prefill.
        decode_per_s=median((new_tokens - 1) / run.decode_s for run in own),
    )


def footprint(runs: Sequence[Run], peer: str, loaded: Loaded) -> Document:
    """Seconds to load one peer, bytes of its model, and peak memory of all of its runs."""
    peaks = [run.peak_bytes for run in runs if run.peer == peer and run.peak_bytes is not None]
    return {"peer": peer, **dataclasses.asdict(loaded), "peak_bytes": max(peaks, default=None)}


def compare(runs: Sequence[Run], *, peer: str, other: str, prompt_tokens: int) -> Comparison:
    """Compare the runs of two peers round by round."""
    same = [run for run in runs if run.prompt_tokens == prompt_tokens]
    mine = {run.round: run for run in same if run.peer == peer}
    theirs = {run.round: run for run in same if run.peer == other}
    pairs = [(mine[number], theirs[number]) for number in sorted(mine)]
    return Comparison(
        peer=peer,
        other=other,
        prompt_tokens=prompt_tokens,
        prefill=Ratio.of(b.prefill_s / a.prefill_s for a, b in pairs),
        decode=Ratio.of(b.decode_s / a.decode_s for a, b in pairs),
        same_tokens=min(common_prefix(a.tokens, b.tokens) for a, b in pairs),
    )


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common prefix."""
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return length


def machine() -> Document:
    """Describe the processor and its load."""
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


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose first column holds names and the others numbers."""
    line = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, line, *rows))


def speed_table(results: Results, prompt_tokens: int, *, new_tokens: int, exact: bool) -> str:
    """Speeds and ratios after prompts of one length.

    Args:
        results: results of all peers.
        prompt_tokens: the length.
        new_tokens: number of requested tokens.
        exact: all peers compute the same except for rounding, so tokens can be compared.
    """
    speeds = [speed for speed in results.speeds if speed.prompt_tokens == prompt_tokens]
    against = {
        comparison.other: comparison
        for comparison in results.comparisons
        if comparison.prompt_tokens == prompt_tokens
    }
    first = speeds[0].peer
    header = ["", "prefill tok/s", "decode tok/s"]
    header += [f"{first} prefill, times", f"{first} decode, times"]
    header += ["same tokens"] if exact else []
    header += ["mean KL"] if results.mean_kl else []
    rows = []
    for speed in speeds:
        row = [speed.peer, f"{speed.prefill_per_s:.0f}", f"{speed.decode_per_s:.1f}"]
        comparison = against.get(speed.peer)
        ratios = ["", "", ""]
        if comparison is not None:
            same = f"{comparison.same_tokens}/{new_tokens}"
            ratios = [str(comparison.prefill), str(comparison.decode), same]
        row += ratios if exact else ratios[:2]
        if results.mean_kl:
            kl = results.mean_kl.get(speed.peer)
            row.append("no logits" if kl is None else f"{kl:.2g}")
        rows.append(row)
    return table(header, rows)


def footprint_table(results: Results) -> str:
    """Table of the needs of each peer."""
    return table(
        ["", "load s", "peak MiB", "model MiB"],
        [
            [
                needs["peer"],
                f"{needs['load_s']:.2f}",
                "" if needs["peak_bytes"] is None else f"{needs['peak_bytes'] / 2**20:.0f}",
                f"{needs['model_bytes'] / 2**20:.0f}",
            ]
            for needs in results.footprints
        ],
    )


def markdown(results: Results, setting: Mapping[str, Any]) -> str:
    """Results as text: the setting, a table per length, and a table of sizes.

    Args:
        results: results of all peers.
        setting: the setting that peers.py writes with the results.
    """
    machine = setting["machine"]
    parts = [
        f"# Speed of {setting['checkpoint']}, {setting['precision']}, {setting['threads']} threads",
        f"{machine['processor']}, {machine['cores']} cores, starts: {setting['starts']}, "
        f"rounds of each: {setting['rounds']}.",
    ]
    for length in dict.fromkeys(speed.prompt_tokens for speed in results.speeds):
        new_tokens = setting["new_tokens"]
        exact = setting["precision"] == "fp32"
        parts.append(f"{length} prompt tokens, {new_tokens} new ones:")
        parts.append(speed_table(results, length, new_tokens=new_tokens, exact=exact))
    if results.mean_kl:
        parts.append("Mean KL is the distance from float32 in PyTorch over the prompts, in nats.")
    parts.append("Memory and disk space:")
    parts.append(footprint_table(results))
    if setting.get("absent"):
        parts.append(
            f"Not installed, and not compared: {', '.join(setting['absent'])}. "
            "`benchmarks/peers.py --peers NAME` installs a peer."
        )
    parts.append(with_versions(setting["versions"]))
    return "\n\n".join(parts)


def with_versions(versions: Mapping[str, Mapping[str, str]]) -> str:
    """A line with the versions of all packages involved."""
    names = {
        f"{package} {version}"
        for packages in versions.values()
        for package, version in packages.items()
    }
    return f"With {', '.join(sorted(names))}.\n"


def document(results: Results, runs: Sequence[Run]) -> Document:
    """Everything except the tokens, as JSON values."""
    plain = [dataclasses.asdict(run) for run in runs]
    return {
        **dataclasses.asdict(results),
        "runs": [{key: run[key] for key in run if key != "tokens"} for run in plain],
    }


def write(path: Path, content: Mapping[str, Any], text: str) -> None:
    """Write results as JSON, and the text about them as Markdown next to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(text, encoding="utf-8")
