"""JSON files of a checkpoint, size-checked before parsing."""

import json
from pathlib import Path

from ortolan import files
from ortolan.modeling.errors import CheckpointError


def read_json(file: Path, limit: int) -> dict[str, object]:
    """Read the object in a JSON file."""
    values = read_json_value(file, limit)
    if not isinstance(values, dict):
        raise CheckpointError(
            f"{file}: expected a JSON object, got {type(values).__name__}. Download it again."
        )
    return values


def read_json_value(file: Path, limit: int) -> object:
    """Read a JSON file."""
    size = file.stat().st_size
    if size > limit:
        raise CheckpointError(
            f"{file}: too large for a {file.name} ({size} bytes; the limit is {limit})."
        )
    try:
        value: object = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not valid JSON: {error}. Download it again.") from error
    return value


def write_json(path: Path, value: object) -> None:
    """Write indented JSON in a folder that nothing reads yet."""
    files.write(path, json.dumps(value, indent=2) + "\n")
