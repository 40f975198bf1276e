"""`ortolan families`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ortolan.cli import options
from ortolan.cli.output import print_json, print_table

if TYPE_CHECKING:  # imported when the command runs
    from ortolan.export.coverage import Row

_WAYS = {"family": "by their family", "transformers": "through transformers"}


@click.command()
@click.argument("model_types", nargs=-1, metavar="[MODEL_TYPE]...")
@options.as_json
def command(model_types: tuple[str, ...], as_json: bool) -> None:
    """List the model types that can be exported, and the error that tests have seen.

    MODEL_TYPE is what a config.json calls its model, such as llama; all of them by default. The
    error is the largest difference from transformers, with weights in fp32, over the largest number
    that transformers gives.
    """
    import msgspec

    from ortolan.export.coverage import read_coverage

    coverage = read_coverage()
    rows = [row for row in coverage.rows if not model_types or row.model_type in model_types]
    missing = [name for name in model_types if not coverage.of(name)]
    if missing:
        raise click.ClickException(
            f"families: expected model types that were tried, got {', '.join(missing)}. "
            "Run `ortolan families` for all of them."
        )
    if as_json:
        print_json(
            {"transformers": coverage.transformers, "rows": [msgspec.to_builtins(r) for r in rows]}
        )
        return
    print_table([("model type", _columns("kind", "way", "error")), *map(_line, rows)])
    if not model_types:
        counts = [f"{count} {_WAYS[way]}" for way, count in coverage.counts().items()]
        print(f"\nsupported: {', '.join(counts)}; transformers {coverage.transformers}")


def _line(row: Row) -> tuple[str, str]:
    error = "-" if row.error is None else f"{row.error:.1e}"
    return row.model_type, _columns(row.kind, _WAYS[row.way], f"{error:<8} {row.note}")


def _columns(kind: str, way: str, rest: str) -> str:
    return f"{kind:<15}  {way:<20}  {rest}"
