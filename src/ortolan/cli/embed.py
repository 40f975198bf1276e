"""`ortolan embed BUNDLE TEXT...`."""

from pathlib import Path

import click

from ortolan.cli import options
from ortolan.cli.inputs import read_inputs
from ortolan.cli.output import print_json
from ortolan.cli.progress import loading


@click.command()
@options.bundle
@click.argument("inputs", nargs=-1, required=True, metavar="TEXT...")
@click.option(
    "--prompt", help='Name of a prompt of the model, put before each text; "" for no prompt.'
)
@options.truncate
@options.device
@options.threads
@options.as_json
def command(
    bundle: Path,
    inputs: tuple[str, ...],
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

    with loading("embed", as_json=as_json) as steps:
        model = load(bundle, Encoder, device=device, threads=threads)
        items = read_inputs(model.manifest, inputs)
        steps("embed", 0, len(items))
        vectors = model.embed(items, prompt=prompt, truncate=truncate)
    if as_json:
        rows = [
            {"input": item, "embedding": vector.tolist()}
            for item, vector in zip(items, vectors, strict=True)
        ]
        print_json({"width": vectors.shape[1], "results": rows, "device": model.device})
        return
    for vector in vectors:
        print(*(f"{value:.6g}" for value in vector))
