"""An image or a sound of a prompt, and the bytes of its file."""

import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ortolan.runtime.errors import InputError


class Medium(NamedTuple):
    """An image or a sound in a prompt.

    Attributes:
        value: as `read_pixels` of `ortolan.runtime.inputs.images` or `read_samples` of
            `ortolan.runtime.inputs.audio` takes it.
        rate: samples per second of an array; None for the rate of the encoder.
    """

    kind: Literal["images", "sounds"]
    value: Any
    rate: int | None = None


def contents(value: Any, name: str, *, most: int, advice: str) -> tuple[bytes, str]:
    """Return the bytes of a file, and a name for errors.

    Args:
        value: a path, or the bytes.
        name: what the bytes are called in errors: `image` or `sound`.
        most: bytes that are read.
        advice: what to do with a larger file.
    """
    if isinstance(value, bytes):
        data, title = value, name
    elif isinstance(value, str | os.PathLike):
        data, title = _read_file(Path(value), name, most), f"{os.fspath(value)}"
    else:
        raise InputError(
            f"{name} must be a path, the bytes of a file or an array (got {type(value).__name__})."
        )
    if len(data) > most:
        raise InputError(f"{title} has more than {most} bytes. {advice}")
    return data, title


def _read_file(path: Path, name: str, most: int) -> bytes:
    kind = name.split()[-1]
    try:
        # a pipe or a device may never end
        if not path.is_file():
            problem = "is not a file" if path.exists() else "does not exist"
            raise InputError(f"{path} {problem}. Check the path of the {kind}.")
        with path.open("rb") as stream:
            return stream.read(most + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{str(path)[:300]!r} cannot be read: {reason}. Check the path of the {kind}."
        ) from error
