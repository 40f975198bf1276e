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
    """List the model types that can be exported, and the error measured in tests.

    MODEL_TYPE is the model_type of a config.json, such as llama. The error is the largest
    difference from transformers, with fp32 weights, relative to the largest output of transformers.
    """
    import msgspec

    from ortolan.export.coverage import read_coverage

    coverage = read_coverage()
    rows = [row for row in coverage.rows if not model_types or row.model_type in model_types]
    missing = [name for name in model_types if not coverage.of(name)]
    if missing:
        raise click.ClickException(
            f"unknown model types: {', '.join(missing)}. `ortolan families` lists those that were "
            "tested."
        )
    if as_json:
        print_json(
            {"transformers": coverage.transformers, "rows": [msgspec.to_builtins(r) for r in rows]}
        )
        return
    print_table([("model type", _columns("kind", "way", "error")), *map(_row, rows)])
    if not model_types:
        counts = [f"{count} {_WAYS[way]}" for way, count in coverage.counts().items()]
        print(f"\nsupported: {', '.join(counts)}; transformers {coverage.transformers}")


def _row(row: Row) -> tuple[str, str]:
    error = "-" if row.error is None else f"{row.error:.1e}"
    return row.model_type, _columns(row.kind, _WAYS[row.way], f"{error:<8} {row.note}")


def _columns(kind: str, way: str, rest: str) -> str:
    return f"{kind:<15}  {way:<20}  {rest}"
