"""`ortolan cache list|remove`."""

import time
from pathlib import Path

import click

from ortolan.cache import CacheError, Entry, cache_folder, entries, remove, remove_abandoned
from ortolan.cli import options
from ortolan.cli.output import aligned, print_json, size


@click.command()
@click.argument("action", type=click.Choice(["list", "remove"]), default="list")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option("--all", "is_all", is_flag=True, help="Remove every bundle.")
@options.as_json
def command(action: str, names: tuple[str, ...], is_all: bool, as_json: bool) -> None:
    """List the bundles that Ortolan keeps for the next start, or remove some.

    They were exported from checkpoints or fetched from the Hugging Face Hub, and are made again
    when they are needed. The list has the last used first. The files of the Hub that they were made
    from are in its own cache, which `hf cache` lists.
    """
    if action == "list":
        if names or is_all:
            raise click.UsageError("`ortolan cache list` has no arguments but --json.")
        _list(as_json)
        return
    if is_all == bool(names):
        raise click.UsageError("Name the bundles to remove, or pass --all.")
    found = {entry.key: entry for entry in entries()}
    if missing := sorted(set(names) - found.keys()):
        raise CacheError(f"{cache_folder()} has no {missing[0]}. See `ortolan cache list`.")
    chosen = [entry for entry in found.values() if is_all or entry.key in names]
    for entry in chosen:
        remove(entry.key)
    remove_abandoned()
    freed = sum(entry.size for entry in chosen)
    if as_json:
        print_json({"removed": [entry.key for entry in chosen], "bytes": freed})
    else:
        count = "1 bundle" if len(chosen) == 1 else f"{len(chosen)} bundles"
        print(f"removed {count} ({size(freed)}) from {cache_folder()}")


def _list(as_json: bool) -> None:
    found = entries()
    if as_json:
        bundles = [
            {
                "name": entry.key,
                "path": str(entry.path),
                "precision": _precision(entry.path),
                "bytes": entry.size,
                "last_used": round(entry.used),
            }
            for entry in found
        ]
        print_json({"folder": str(cache_folder()), "bundles": bundles})
        return
    total = sum(entry.size for entry in found)
    print(f"{cache_folder()} ({size(total)})")
    for row in aligned(map(_row, found)):
        print(f"  {row}")


def _row(entry: Entry) -> tuple[str, ...]:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
    return entry.key, _precision(entry.path) or "damaged", size(entry.size), used


def _precision(folder: Path) -> str | None:
    """Precision of a bundle; `None` if its manifest cannot be read."""
    from ortolan.runtime.bundle import manifest_file
    from ortolan.runtime.errors import ManifestError

    try:
        manifest = manifest_file.decode((folder / manifest_file.NAME).read_bytes())
    except (OSError, ManifestError):
        return None
    return manifest.precision
