"""`ortolan bench BUNDLE`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ortolan import runtime
from ortolan.cli import options
from ortolan.cli.help import Decorator
from ortolan.cli.opening import bundle_of
from ortolan.cli.output import aligned, print_json, print_table, size
from ortolan.cli.progress import progress

if TYPE_CHECKING:
    from ortolan.runtime.bench.measure import CaseResult

COLUMNS = ("test", "tok/s", "±", "median")


def _lengths(flag: str, name: str, default: int, text: str) -> Decorator:
    return click.option(
        flag,
        name,
        type=click.IntRange(min=0),
        multiple=True,
        default=(default,),
        show_default=True,
        help=text,
    )


@click.command()
@options.bundle
@_lengths("-p", "prompts", 512, "Prompt length to measure (pp); repeatable; 0 for none.")
@_lengths("-n", "news", 128, "Number of tokens to generate (tg); repeatable; 0 for none.")
@_lengths("-d", "depths", 0, "Tokens already in the KV cache; repeatable.")
@click.option(
    "-r",
    "repetitions",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Number of runs of each, after a warm-up.",
)
@options.loading
@options.as_json
def bench_command(
    bundle: str,
    prompts: tuple[int, ...],
    news: tuple[int, ...],
    depths: tuple[int, ...],
    repetitions: int,
    settings: dict[str, Any],
    as_json: bool,
) -> None:
    """Measure the speed of prefill (pp) and decoding (tg)."""
    import msgspec

    from ortolan.runtime.bench.measure import cases, measure

    with progress("load") as steps:
        model = runtime.load(bundle_of(bundle, steps), runtime.Decoder, **settings)
        result = measure(
            model,
            cases(prompts, news, depths),
            repetitions=repetitions,
            progress=partial(steps, "bench"),
        )
    if as_json:
        print_json(msgspec.to_builtins(result))
        return
    print("\n".join(aligned([COLUMNS, *map(_row, result.cases)], has_figures=True)))
    print()
    peak = result.peak_memory_bytes
    print_table(
        [
            ("model", f"{result.model_type}, {result.precision}"),
            (
                "run",
                f"{result.device}, {result.threads} threads on {result.physical_cores} physical "
                f"cores, {result.repetitions} repetitions",
            ),
            ("cache", f"{size(result.cache_bytes_per_token)} per token of context"),
            ("memory", f"{size(peak)} at the peak" if peak is not None else None),
        ]
    )


def _row(case: CaseResult) -> tuple[str, ...]:
    speed = case.speed
    return (case.name, *(f"{s:.1f}" for s in (speed.mean, speed.deviation, speed.median)))
