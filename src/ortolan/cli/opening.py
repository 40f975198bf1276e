"""Bundles of a command line: a path, or a name on the Hugging Face Hub."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from ortolan import runtime
from ortolan.cli.progress import Reporter, progress
from ortolan.hub.client import Listing, list_files
from ortolan.hub.fetch import kind_of
from ortolan.hub.name import name_of


@contextmanager
def loaded(bundle: str, settings: Mapping[str, Any], kind: Any = None) -> Iterator[Any]:
    """Load a bundle, and show progress until the command has its results."""
    with progress("load") as steps:
        model = runtime.load(bundle_of(bundle, steps), kind, **settings)
        steps(click.get_current_context().info_name or "", 0, 1)
        yield model


def opened(
    bundle: str, steps: Reporter, *, isolate: bool, full_check: bool = False
) -> runtime.Bundle:
    """Open a bundle for a command that computes with it.

    One that is new here is loaded in a subprocess first, as `ortolan.load` does.
    """
    from ortolan.runtime.verification.first_load import pass_first_load

    found = runtime.open_bundle(bundle_of(bundle, steps), full_check=full_check)
    if isolate:
        pass_first_load(found)
    return found


def bundle_of(model: str | Listing, steps: Reporter) -> Path:
    """Return the folder of a bundle; that of a name is fetched first."""
    source = model if isinstance(model, Listing) else name_of(model)
    if source is None:
        return Path(f"{model}")
    from ortolan.runtime.bundle.fetched import fetched

    steps("fetch", 0, 1)
    folder = fetched(source, progress=steps, waiting=lambda: steps("wait", 0, 1))
    steps("load", 0, 1)
    return folder


def bundle_in(model: str, steps: Reporter) -> Path | None:
    """Return the folder of a bundle as `bundle_of` does; `None` for a checkpoint."""
    name = name_of(model)
    if name is not None:
        listing = list_files(name)
        return bundle_of(listing, steps) if kind_of(listing) == "bundle" else None
    folder = Path(model)
    # a manifest that is a broken link is still that of a bundle
    is_bundle = os.path.lexists(folder / "manifest.json") or not folder.exists()
    return folder if is_bundle else None
