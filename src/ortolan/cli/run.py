"""`ortolan run BUNDLE [PROMPT | -]`."""

import sys
from dataclasses import asdict
from pathlib import Path

import click

from ortolan.cli.output import print_json


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("prompt", default="-")
@click.option("-n", "max_new_tokens", type=int, help="Most new tokens; all that fit by default.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=int, default=0, help="Keep this many tokens; 0 keeps all.")
@click.option("--top-p", type=float, default=1.0, help="Keep the likeliest up to this share.")
@click.option("--min-p", type=float, default=0.0, help="Keep those this likely, beside the top.")
@click.option("--repetition-penalty", type=float, default=1.0)
@click.option("--presence-penalty", type=float, default=0.0)
@click.option("--frequency-penalty", type=float, default=0.0)
@click.option("--seed", type=int, help="Makes the draws repeatable.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; repeatable.")
@click.option("--ignore-eos", is_flag=True, help="Go on behind the end of the text.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--threads", type=int, help="The physical cores by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, at the end.")
def command(
    bundle: Path,
    prompt: str,
    max_new_tokens: int | None,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition_penalty: float,
    presence_penalty: float,
    frequency_penalty: float,
    seed: int | None,
    stop: tuple[str, ...],
    ignore_eos: bool,
    device: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Continue PROMPT, or standard input where it is - or left out.

    The text streams to standard output as it is generated; figures go to standard error.
    """
    from ortolan.runtime import Sampling, load

    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
    )
    text = _read_stdin() if prompt == "-" else prompt
    model = load(bundle, device=device, threads=threads)
    stream = model.stream(
        text,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        stop=stop,
        ignore_eos=ignore_eos,
    )
    for piece in stream:
        if not as_json:
            print(piece, end="", flush=True)
    completion = stream.completion
    if as_json:
        print_json({"prompt": text, **asdict(completion), "device": model.device})
        return
    print()
    timings = completion.timings
    print(
        f"[{timings.new_tokens} tokens, {timings.tokens_per_second:.1f} tok/s, first after "
        f"{timings.time_to_first_token_s * 1000:.0f} ms, {completion.finish_reason}]",
        file=sys.stderr,
    )


def _read_stdin() -> str:
    """Standard input as text.

    Raises:
        InputError: it is not UTF-8.
    """
    from ortolan.runtime import InputError

    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"standard input: expected UTF-8 text, got byte 0x{data[error.start]:02x} at "
            f"{error.start}. Convert the input."
        ) from error
