"""`ortolan run BUNDLE [PROMPT | -]`."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortolan.cli import options
from ortolan.cli.output import print_json
from ortolan.cli.texts import read_stdin

if TYPE_CHECKING:
    from ortolan.runtime import Completion, Decoder, InputError, Sampling, Seq2Seq, Timings


@click.command()
@options.bundle
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
@click.option("--ignore-eos", is_flag=True, help="Go on after the end of the text.")
@click.option("--beams", type=int, help="Search with so many beams; of an encoder-decoder.")
@click.option("--n-best", type=int, help="Print so many of the beams, with their scores.")
@click.option("--length-penalty", type=float, help="Of beams: above 0 favours long texts.")
@options.device
@options.threads
@options.as_json
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
    beams: int | None,
    n_best: int | None,
    length_penalty: float | None,
    device: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Continue PROMPT, or standard input where it is - or left out.

    The bundle of an encoder-decoder writes the text that belongs to it, such as its translation.
    The text streams to standard output as it is generated; figures go to standard error.
    """
    from ortolan.runtime import Decoder, Sampling, Seq2Seq, load, open_bundle

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
    of_beams = {"beams": beams, "n_best": n_best, "length_penalty": length_penalty}
    given = {name: value for name, value in of_beams.items() if value is not None}
    text = read_stdin() if prompt == "-" else prompt
    if open_bundle(bundle).manifest.kind == "encoder-decoder":
        text = text.removesuffix("\n")  # of a line from standard input: no part of the source
        translator = load(bundle, Seq2Seq, device=device, threads=threads)
        if ignore_eos:
            raise _refusal("--ignore-eos", "a decoder")
        if given:
            _search(translator, text, max_new_tokens, sampling, stop, given, as_json=as_json)
            return
        _stream(translator, text, max_new_tokens, sampling, stop, {}, as_json=as_json)
        return
    model = load(bundle, Decoder, device=device, threads=threads)
    for name in given:
        raise _refusal(f"--{name.replace('_', '-')}", "an encoder-decoder")
    _stream(
        model, text, max_new_tokens, sampling, stop, {"ignore_eos": ignore_eos}, as_json=as_json
    )


def _refusal(option: str, kind: str) -> "InputError":
    """The error for an option that means nothing to this bundle."""
    from ortolan.runtime import InputError

    return InputError(f"{option}: expected a bundle of {kind}, got another. Leave it out.")


def _stream(
    model: "Decoder | Seq2Seq",
    text: str,
    max_new_tokens: int | None,
    sampling: "Sampling",
    stop: Sequence[str],
    more: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    """Print a text while it is generated."""
    stream = model.stream(text, max_new_tokens=max_new_tokens, sampling=sampling, stop=stop, **more)
    for piece in stream:
        if not as_json:
            print(piece, end="", flush=True)
    completion = stream.completion
    if as_json:
        about = {"device": model.device, "device_reason": model.device_reason}
        print_json({"prompt": text, **asdict(completion), **about})
        return
    print()
    _print_figures(completion.timings, completion.finish_reason)


def _search(
    model: "Seq2Seq",
    text: str,
    max_new_tokens: int | None,
    sampling: "Sampling",
    stop: Sequence[str],
    of_beams: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    """Print what a beam search finds: the best text, or several, each after its score."""
    from ortolan.runtime import Sampling

    found: Completion = model.generate(
        text,
        max_new_tokens=max_new_tokens,
        sampling=None if sampling == Sampling() else sampling,
        stop=stop,
        **of_beams,
    )
    if as_json:
        about = {"device": model.device, "device_reason": model.device_reason}
        print_json({"prompt": text, **asdict(found), **about})
        return
    if found.alternatives:
        for score, written in (
            (found.score, found.text),
            *((each.score, each.text) for each in found.alternatives),
        ):
            print(f"{score:.4f}\t{written}")
    else:
        print(found.text)
    _print_figures(found.timings, found.finish_reason)


def _print_figures(timings: "Timings", finish_reason: str) -> None:
    print(
        f"[{timings.new_tokens} tokens, {timings.tokens_per_second:.1f} tok/s, first after "
        f"{timings.time_to_first_token_s * 1000:.0f} ms, {finish_reason}]",
        file=sys.stderr,
    )
