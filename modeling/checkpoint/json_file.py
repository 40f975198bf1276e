"""JSON files of a checkpoint, bounded before they are parsed."""

import json
from pathlib import Path

from ortolan.modeling.errors import CheckpointError


def read_json(file: Path, limit: int) -> dict[str, object]:
    """The object in a JSON file of at most `limit` bytes.

    Raises:
        CheckpointError: the file is larger, or holds something else.
    """
    values = read_json_value(file, limit)
    if not isinstance(values, dict):
        raise CheckpointError(
            f"{file}: expected a JSON object, got {type(values).__name__}. Fetch it again."
        )
    return values


def read_json_value(file: Path, limit: int) -> object:
    """The content of a JSON file of at most `limit` bytes.

    Raises:
        CheckpointError: the file is larger, or no JSON.
    """
    size = file.stat().st_size
    if size > limit:
        raise CheckpointError(
            f"{file}: expected at most {limit} bytes, got {size}. This is not a {file.name}."
        )
    try:
        value: object = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: expected JSON, got {error}. Fetch it again.") from error
    return value
