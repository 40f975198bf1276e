"""`ortolan embed BUNDLE TEXT...`."""

from pathlib import Path

import click

from ortolan.cli.output import print_json
from ortolan.cli.texts import texts_of


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("inputs", nargs=-1, required=True, metavar="TEXT...")
@click.option("--truncate", is_flag=True, help="Cut texts that are over the limit.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--threads", type=int, help="The physical cores by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    bundle: Path,
    inputs: tuple[str, ...],
    truncate: bool,
    device: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Print a vector for each TEXT, one a line; for each file where BUNDLE takes images.

    Where a text is -, every line of standard input is one.
    """
    from ortolan.runtime import Encoder, load
    from ortolan.runtime.bundle.manifest import ImageSource

    model = load(bundle, Encoder, device=device, threads=threads)
    given = list(inputs) if isinstance(model.manifest.source, ImageSource) else texts_of(inputs)
    vectors = model.embed(given, truncate=truncate)
    if as_json:
        results = [
            {"input": text, "embedding": vector.tolist()}
            for text, vector in zip(given, vectors, strict=True)
        ]
        print_json({"width": vectors.shape[1], "results": results, "device": model.device})
        return
    for vector in vectors:
        print(*(f"{value:.6g}" for value in vector))
