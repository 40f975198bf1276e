"""`ortolan bench BUNDLE`."""

from pathlib import Path

import click

from ortolan.cli.output import Steps, print_json, size


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("-p", "prompt_tokens", type=click.IntRange(min=1), default=512, show_default=True)
@click.option("-n", "new_tokens", type=click.IntRange(min=2), default=128, show_default=True)
@click.option("-r", "repetitions", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--threads", type=int, help="The physical cores by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    bundle: Path,
    prompt_tokens: int,
    new_tokens: int,
    repetitions: int,
    device: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Measure BUNDLE: prompt processing (pp) and token generation (tg), tokens per second."""
    import msgspec

    from ortolan.runtime import load
    from ortolan.runtime.benchmark import measure

    model = load(bundle, device=device, threads=threads)
    steps = Steps()
    try:
        result = measure(
            model,
            prompt_tokens=prompt_tokens,
            new_tokens=new_tokens,
            repetitions=repetitions,
            progress=lambda done, total: steps("bench", done, total),
        )
    finally:
        steps.close()
    if as_json:
        print_json(msgspec.to_builtins(result))
        return
    for name, speed in (("pp", result.prefill), ("tg", result.decode)):
        test = f"{name}{speed.tokens}"
        print(f"{test:<8} {speed.mean:10.1f} ± {speed.deviation:.1f} tok/s")
    if result.peak_memory_bytes is not None:
        print(f"{'memory':<8} {size(result.peak_memory_bytes):>10} peak, on {result.device}")
