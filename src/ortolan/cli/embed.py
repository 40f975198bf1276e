"""`ortolan embed BUNDLE TEXT...`."""

from pathlib import Path

import click

from ortolan.cli import options
from ortolan.cli.inputs import read_inputs
from ortolan.cli.models import bundle_of
from ortolan.cli.output import print_json
from ortolan.cli.progress import loading


@click.command()
@options.bundle
@click.argument("inputs", nargs=-1, metavar="TEXT...")
@options.images
@click.option(
    "--text",
    "texts",
    multiple=True,
    help="Text, if BUNDLE compares images with texts; repeatable.",
)
@click.option(
    "--prompt", help='Name of a prompt of the model, put before each text; "" for no prompt.'
)
@options.truncate
@options.device
@options.threads
@options.as_json
def command(
    bundle: str,
    inputs: tuple[str, ...],
    images: tuple[Path, ...],
    texts: tuple[str, ...],
    prompt: str | None,
    truncate: bool,
    device: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Print one embedding per line: of each TEXT, or image file if BUNDLE reads images.

    With -, each line of standard input is a text.
    """
    from ortolan.runtime import Encoder, load

    if not inputs and not images and not texts:
        raise click.UsageError("Pass a TEXT, or --image or --text.")
    with loading("embed", as_json=as_json) as steps:
        model = load(bundle_of(bundle, steps), Encoder, device=device, threads=threads)
        items = read_inputs(model.manifest, inputs, images)
        steps("embed", 0, len(items) + len(texts))
        parts = [(model, items)] if items else []
        if texts:
            parts.append((model.texts, [*texts]))
        vectors = [
            vector
            for encoder, own in parts
            for vector in encoder.embed(own, prompt=prompt, truncate=truncate)
        ]
    if as_json:
        rows = [
            {"input": item, "embedding": vector.tolist()}
            for item, vector in zip([*items, *texts], vectors, strict=True)
        ]
        output = model.manifest.output
        width = 0 if output is None else output.size
        print_json({"width": width, "results": rows, "device": model.device})
        return
    for vector in vectors:
        print(*(f"{value:.6g}" for value in vector))
