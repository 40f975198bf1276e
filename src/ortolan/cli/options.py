"""Arguments and options that several commands have, said once."""

from pathlib import Path

import click

bundle = click.argument("bundle", type=click.Path(path_type=Path))

device = click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")

threads = click.option(
    "--threads",
    type=int,
    help="Number of threads: the physical cores by default, 1 for a small translator.",
)

truncate = click.option("--truncate", is_flag=True, help="Cut texts that are too long.")

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
