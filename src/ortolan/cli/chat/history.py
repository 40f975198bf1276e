"""The history file of `ortolan chat`: typed questions and commands, one JSON string per line."""

from __future__ import annotations

import json
from pathlib import Path

from ortolan import files, runtime

MOST_ENTRIES = 1000

MOST_BYTES = 1 << 20  # maximum size of the file; the newest entries that fit are kept


def history_path() -> Path:
    """The history file of this user."""
    from ortolan.cache import state_folder

    return state_folder() / "chat_history"


def read_history(path: Path) -> list[str]:
    """Read the entries, oldest first; none if there is no file."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES} bytes")
        entries = [json.loads(line) for line in data.splitlines()]
        if not all(isinstance(entry, str) for entry in entries):
            raise ValueError("values other than texts")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        raise runtime.StateFileError(
            f"{path} is not a chat history: {error}. Remove it, or chat with --no-history."
        ) from error
    return entries


def add_to_history(path: Path, entry: str) -> None:
    """Append an entry unless it repeats the last one; drop the oldest entries if necessary.

    Reads the file again each time, so that parallel chats keep the entries of all. Entries larger
    than `MOST_BYTES` are skipped.
    """
    before = read_history(path)
    texts = [*before[1 - MOST_ENTRIES :], entry]
    lines = [json.dumps(text).encode() + b"\n" for text in texts]
    if before[-1:] == [entry] or len(lines[-1]) > MOST_BYTES:
        return
    while sum(map(len, lines)) > MOST_BYTES:
        del lines[0]
    try:
        files.make_folders(path.parent, mode=0o700)
        with files.replaced(path, is_private=True, is_synced=False) as file:
            file.write(b"".join(lines))
    except OSError as error:
        raise runtime.StateFileError(
            f"{path}: cannot write the chat history: {error}. Chat with --no-history."
        ) from error
