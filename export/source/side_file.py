"""JSON files beside a checkpoint's weights, which say more than its config."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ortolan.export.errors import OptionError

PREPROCESSOR = "preprocessor_config.json"

PROCESSOR = "processor_config.json"
"""Newer file, whose parts are under their names, such as `image_processor`."""

MAX_BYTES = 64 << 20
"""Largest file that is read; one that lists a large vocabulary has about 20 MB."""

T = TypeVar("T")

Keys = dict[str, object]
"""All keys of a file."""


def read_side(path: Path, kind: type[T]) -> T:
    """The keys of `kind` in a file, or their defaults if there is none; other keys are ignored."""
    try:
        if not path.is_file():
            return msgspec.convert({}, kind)
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise OptionError(f"{path}: expected at most {MAX_BYTES} bytes, got {size}. Remove it.")
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OptionError(
            f"{path}: cannot be read: {str(error)[:200]}. Correct it, or copy it again."
        ) from error


def processor_keys(folder: Path, part: str) -> Keys:
    """The keys of one part of a processor; none without a file."""
    nested = read_side(folder / PROCESSOR, dict[str, Any]).get(part)
    own: Keys | None = nested if isinstance(nested, dict) else None
    return read_side(folder / PREPROCESSOR, Keys) if own is None else own
