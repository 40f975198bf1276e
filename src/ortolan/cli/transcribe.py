"""`ortolan transcribe BUNDLE SOUND`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ortolan import runtime
from ortolan.cli import options
from ortolan.cli.opening import loaded
from ortolan.cli.output import print_json

if TYPE_CHECKING:  # the runtime is imported when the command runs
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray


BLOCK = 1 << 16  # bytes to read from standard input at once, at most


@click.command()
@options.bundle
@click.argument("sound")
@click.option("--language", metavar="CODE", help="Spoken language, such as de; default: recognize.")
@click.option("--translate", is_flag=True, help="Translate into English.")
@click.option("--srt", is_flag=True, help="Print subtitles for video players.")
@click.option("--vtt", is_flag=True, help="Print subtitles for browsers.")
@click.option(
    "--rate",
    type=click.IntRange(min=1),
    metavar="HZ",
    help="With -: samples per second. Default: what BUNDLE reads, usually 16000.",
)
@options.loading
@options.as_json
def transcribe_command(
    bundle: str,
    sound: str,
    language: str | None,
    translate: bool,
    srt: bool,
    vtt: bool,
    rate: int | None,
    settings: dict[str, Any],
    as_json: bool,
) -> None:
    """Write down what is said in SOUND, a file of any length, with times in seconds.

    With -, reads raw samples from standard input (16 bits, one channel), such as from a microphone,
    and prints each sentence soon after it was said; with --json, as an object per line.
    """
    if srt + vtt + as_json > 1:
        raise click.UsageError("--srt, --vtt and --json exclude each other.")
    if sound == "-" and (srt or vtt):
        raise click.UsageError("--srt and --vtt need a file. Use --json, or save the sound first.")
    if sound != "-" and rate is not None:
        raise click.UsageError("--rate is for -: a file states its own. Leave it out.")
    chosen: dict[str, Any] = {} if language is None else {"language": language}
    if translate:
        chosen["translate"] = True
    with loaded(bundle, settings) as model:
        _check(model, sound, chosen)
        transcript = None if sound == "-" else model.transcribe(sound, **chosen)
    if transcript is None:
        for segment in model.listen(_blocks(), rate=rate, **chosen):
            if as_json:
                print(json.dumps(asdict(segment)), flush=True)
            else:
                _print_line(segment)
    elif as_json:
        print_json({"sound": sound, **asdict(transcript), "device": model.device})
    elif srt or vtt:
        print(transcript.srt if srt else transcript.vtt, end="")
    else:
        for segment in transcript.segments:
            _print_line(segment)


def _check(model: Any, sound: str, chosen: dict[str, Any]) -> None:
    """Reject models that do not transcribe, and what an encoder or a chat model cannot do."""
    from ortolan.runtime.bundle.manifest import wrong_kind

    if isinstance(model, runtime.Decoder) and not model.manifest.dictation:
        raise wrong_kind(model.manifest, what="transcribe", expected="a bundle that reads sounds")
    if isinstance(model, runtime.Seq2Seq):
        return
    if sound == "-":
        raise click.UsageError(
            "- is for encoder-decoders such as Whisper. This model reads whole sounds: save the "
            "sound first."
        )
    if isinstance(model, runtime.Decoder) and "translate" in chosen:
        raise click.UsageError("--translate is for encoder-decoders such as Whisper. Leave it out.")
    if isinstance(model, runtime.Encoder) and chosen:
        raise click.UsageError(
            "--language and --translate are for models that write text. This one spells what it "
            "hears. Leave them out."
        )


def _print_line(segment: runtime.Segment) -> None:
    if segment.text:
        print(f"{segment.start:8.2f} {segment.end:8.2f}  {segment.text}", flush=True)


def _blocks() -> Iterator[NDArray[np.int16]]:
    """Samples from standard input, as they come."""
    import numpy as np

    rest = b""
    stdin: Any = sys.stdin.buffer
    while data := stdin.read1(BLOCK):  # what there is, even if it is less
        data = rest + data
        whole = len(data) // 2 * 2
        rest = data[whole:]
        if whole:
            yield np.frombuffer(data[:whole], "<i2")
