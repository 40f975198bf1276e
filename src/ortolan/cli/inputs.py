"""Texts from the command line or from standard input."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ortolan import runtime


def read_stdin() -> str:
    """Read standard input as text."""
    return decoded(sys.stdin.buffer.read(), "Standard input")


def decoded(data: bytes, name: str) -> str:
    """Return UTF-8 as text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise runtime.InputError(
            f"{name} must be UTF-8 text (got byte 0x{data[error.start]:02x} at {error.start})."
        ) from error


def read_inputs(
    manifest: runtime.Manifest, arguments: Sequence[str], images: Sequence[Path] = ()
) -> list[str]:
    """Return the arguments, with `-` replaced by the lines of standard input, then the images.

    Empty lines are skipped. For a bundle that classifies or embeds images, arguments are files.
    """
    if manifest.source is not None and manifest.source.medium == "images":
        return [*arguments, *map(str, images)]
    if images:
        raise runtime.InputError("--image is for bundles that read images. Pass texts without it.")
    texts: list[str] = []
    for argument in arguments:
        if argument == "-":
            texts += [line for line in read_stdin().splitlines() if line.strip()]
        else:
            texts.append(argument)
    return texts
