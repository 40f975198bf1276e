"""`ortolan bench BUNDLE`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ortolan.cli import options
from ortolan.cli.models import bundle_of
from ortolan.cli.output import Row, print_json, print_table, size
from ortolan.cli.progress import progress

if TYPE_CHECKING:
    from ortolan.runtime.bench.figures import CaseResult, Generation, Result

COLUMNS = ("test", "tok/s", "±", "median", "read/token", "read/s", "of memory")

_Length = click.IntRange(min=0)


@click.command()
@options.bundle
@click.option(
    "-p",
    "prompts",
    type=_Length,
    multiple=True,
    default=(512,),
    show_default=True,
    help="Prompt length to measure (pp); repeatable; 0 for none.",
)
@click.option(
    "-n",
    "news",
    type=_Length,
    multiple=True,
    default=(128,),
    show_default=True,
    help="Number of tokens to generate (tg); repeatable; 0 for none.",
)
@click.option(
    "-d",
    "depths",
    type=_Length,
    multiple=True,
    default=(0,),
    show_default=True,
    help="Tokens already in the KV cache; repeatable.",
)
@click.option(
    "-r",
    "repetitions",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Number of runs of each, after a warm-up.",
)
@options.device
@options.threads
@options.as_json
def command(
    bundle: str,
    prompts: tuple[int, ...],
    news: tuple[int, ...],
    depths: tuple[int, ...],
    repetitions: int,
    device: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Measure the speed of prefill (pp) and decoding (tg), and suggest improvements.

    For decoding, also prints the bytes read per token and their share of the memory bandwidth,
    which is measured in the same run with the same number of threads.
    """
    import msgspec

    from ortolan.runtime import Decoder, load
    from ortolan.runtime.bench.measure import cases, measure

    with progress("bench", as_json=as_json) as steps:
        steps("load", 0, 1)
        model = load(bundle_of(bundle, steps), Decoder, device=device, threads=threads)
        result = measure(
            model,
            cases(prompts, news, depths),
            repetitions=repetitions,
            progress=lambda done, total: steps("bench", done, total),
        )
    if as_json:
        print_json(msgspec.to_builtins(result))
        return
    _print_rows([COLUMNS, *(_row(case) for case in result.cases)])
    print()
    print_table(_about(result))
    if result.advice:
        print("\nadvice")
    for advice in result.advice:
        print(f"  {advice.text}")


def _row(case: "CaseResult") -> tuple[str, ...]:
    speed, reads = case.speed, case.generation
    row = (case.name, *(f"{s:.1f}" for s in (speed.mean, speed.deviation, speed.median)))
    if reads is None:
        return (*row, "", "", "")
    return (*row, size(reads.bytes_per_token), f"{size(reads.bytes_per_second)}/s", _share(reads))


def _share(reads: "Generation") -> str:
    if reads.in_cache:
        return "in cache"
    return "" if reads.bandwidth_share is None else f"{reads.bandwidth_share:.0%}"


def _about(result: "Result") -> list[Row]:
    """Rows about the model and the machine."""
    weights = result.weights
    formats = ", ".join(f"{size(count)} in {name}" for name, count in weights.formats.items())
    peak, bandwidth = result.peak_memory_bytes, result.bandwidth
    return [
        ("model", f"{result.model_type}, {result.precision}"),
        (
            "run",
            f"{result.device}, {result.threads} threads on {result.physical_cores} physical "
            f"cores, {result.repetitions} repetitions",
        ),
        (
            "weights",
            f"{size(weights.bytes)} per token: {formats} (head {size(weights.head_bytes)})",
        ),
        ("cache", f"{size(result.cache_bytes_per_token)} per token of context"),
        (
            "bandwidth",
            f"{size(bandwidth.bytes_per_second)}/s read from memory" if bandwidth else None,
        ),
        ("memory", f"{size(peak)} at the peak" if peak is not None else None),
        *(("note", note) for note in result.notes),
    ]


def _print_rows(rows: Sequence[Sequence[str]]) -> None:
    """Print a table: names left-aligned, figures right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for name, *figures in rows:
        cells = [f"{figure:>{width}}" for figure, width in zip(figures, widths[1:], strict=True)]
        print("  ".join([f"{name:<{widths[0]}}", *cells]).rstrip())
