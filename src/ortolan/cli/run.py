"""`ortolan run MODEL [PROMPT | -]`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortolan import runtime
from ortolan.cli import options
from ortolan.cli.help import LongCommand, section
from ortolan.cli.inputs import read_stdin
from ortolan.cli.output import print_json
from ortolan.cli.progress import progress, prompt_progress

if TYPE_CHECKING:
    from ortolan.runtime.generation.drafts import Draft

_KINDS = ("decoder", "encoder-decoder")

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_constraint = section("Constraints")
_adapters = section("Adapters")
_media = section("Images and sounds")
_seq2seq = section("Encoder-decoder models")


@click.command(cls=LongCommand)
@options.model
@click.argument("prompt", default="-")
@options.max_new_tokens
@options.sampling(from_model=False)
@options.stop
@click.option("--json-schema", type=_FILE, help="Generate JSON that this schema accepts.")
@click.option(
    "--draft",
    metavar="lookup|mtp|BUNDLE",
    help="Speed up decoding with drafts: from the prompt, by the model's own head (exported with "
    "--mtp), or by a smaller model.",
)
@options.loading_in_section
@options.checkpoint
@options.as_json
@_constraint("--regex", help="Generate text that matches this regular expression.")
@_constraint("--lark", type=_FILE, help="Generate text of this Lark grammar.")
@_constraint("--ignore-eos", is_flag=True, help="Continue past the end-of-sequence token.")
@_media(
    "--image",
    "images",
    type=_FILE,
    multiple=True,
    help="Image before PROMPT, for a model that reads images; repeatable.",
)
@_media(
    "--audio",
    "sounds",
    type=_FILE,
    multiple=True,
    help="Sound before PROMPT, for a model that reads sounds; repeatable.",
)
@_adapters("--adapter", type=options.path, help="Folder of an adapter to generate with.")
@_seq2seq("--beams", type=int, help="Number of beams of a beam search.")
@_seq2seq("--n-best", type=int, help="Print the best results of the search, with their scores.")
@_seq2seq("--length-penalty", type=float, help="Above 0, a beam search favors longer texts.")
@_seq2seq("--first", metavar="TOKEN", help="First new token, such as the target language.")
def run_command(
    model: str,
    prompt: str,
    max_new_tokens: int | None,
    sampling: options.SamplingChoice,
    stop: tuple[str, ...],
    ignore_eos: bool,
    json_schema: Path | None,
    regex: str | None,
    lark: Path | None,
    draft: str | None,
    images: tuple[Path, ...],
    sounds: tuple[Path, ...],
    adapter: Path | None,
    first: str | None,
    settings: dict[str, Any],
    checkpoint: options.CheckpointChoice,
    as_json: bool,
    **searching: Any,
) -> None:
    """Continue PROMPT with MODEL, or standard input if it is - or missing.

    MODEL is a bundle or a checkpoint: a folder, a .gguf file, or a name on the Hugging Face Hub. A
    checkpoint is exported once, and kept for the next start (`ortolan cache`).

    An encoder-decoder generates a new text from it, such as a translation. Text streams to
    standard output; timings go to standard error.
    """
    from ortolan.cli.ready import ready

    text = read_stdin() if prompt == "-" else prompt
    search = _present(**searching)
    adapters = _present(**{options.ADAPTER: adapter})
    with progress("load") as steps:
        folder = ready(model, steps, _KINDS, settings["device"], checkpoint)
        loaded = runtime.load(folder, adapters=adapters, **settings)
    _check_kind(loaded, search | _present(first=first), has_media=bool(images or sounds))
    request = {
        "max_new_tokens": max_new_tokens,
        "stop": stop,
        "sampling": sampling.resolve(loaded),
        "grammar": _grammar(json_schema, regex, lark),
        **_present(ignore_eos=ignore_eos or None, adapter=options.ADAPTER if adapters else None),
        **_present(first=first, draft=_draft(draft, settings)),
    }
    if loaded.manifest.source is not None:
        text = text.removesuffix("\n")  # the end of a line is not part of a source
    media = [*({"image": path} for path in images), *({"audio": path} for path in sounds)]
    parts: Any = [*media, text] if media else text
    completion = _generate(loaded, parts, request, search, is_shown=not as_json)
    if as_json:
        where = {"device": loaded.device, "device_reason": loaded.device_reason}
        print_json({"prompt": text, **asdict(completion), **where})
    else:
        _print_end(completion, is_streamed=not search)


def _present(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _grammar(
    json_schema: Path | None, regex: str | None, lark: Path | None
) -> runtime.Grammar | None:
    if (json_schema, regex, lark).count(None) < 2:
        raise runtime.InputError("Use only one of --json-schema, --regex and --lark.")
    if json_schema is not None:
        return runtime.Grammar.json_schema(json_schema.read_text(encoding="utf-8"))
    if regex is not None:
        return runtime.Grammar.regex(regex)
    return None if lark is None else runtime.Grammar.lark(lark.read_text(encoding="utf-8"))


def _draft(name: str | None, settings: dict[str, Any]) -> Draft | None:
    if name is None:
        return None
    if name == "lookup":
        return runtime.PromptLookup()
    if name == "mtp":
        return runtime.MtpHead()
    return runtime.DraftModel(runtime.load(name, runtime.Decoder, **settings))


def _generate(
    model: Any, prompt: Any, request: dict[str, Any], search: dict[str, Any], *, is_shown: bool
) -> runtime.Completion:
    """Search with beams, or stream a text and print it."""
    if search:
        best: runtime.Completion = model.generate(prompt, **request, **search)
        return best
    stream: runtime.TextStream = model.stream(prompt, **request)
    with prompt_progress(lambda: stream.prompt_progress) as end_progress:
        for piece in stream:
            end_progress()
            if is_shown:
                print(piece, end="", flush=True)
    return stream.completion


def _print_end(completion: runtime.Completion, *, is_streamed: bool) -> None:
    """Print the results of a beam search, with scores if there are several; then figures."""
    print(f"{completion.score:.4f}\t" if completion.alternatives else "", end="")
    print("" if is_streamed else completion.text)
    for alternative in completion.alternatives:
        print(f"{alternative.score:.4f}\t{alternative.text}")
    timings = completion.timings
    print(
        f"[{timings.new_tokens} tokens, {timings.tokens_per_second:.1f} tok/s, first after "
        f"{timings.time_to_first_token_s * 1000:.0f} ms, {completion.finish_reason}]",
        file=sys.stderr,
    )


def _check_kind(model: Any, for_encoder_decoders: Iterable[str], *, has_media: bool) -> None:
    """Reject bundles that do not generate text, and options for other bundles."""
    from ortolan.runtime.bundle.manifest import wrong_kind

    is_decoder = isinstance(model, runtime.Decoder)
    if has_media and not is_decoder:
        raise runtime.InputError("--image and --audio are for decoders that read images or sounds.")
    if not isinstance(model, runtime.Decoder | runtime.Seq2Seq):
        raise wrong_kind(model.manifest, what="run", expected="a bundle that writes texts")
    for option in for_encoder_decoders if is_decoder else ():
        raise runtime.InputError(f"--{option.replace('_', '-')} is for encoder-decoders only.")
