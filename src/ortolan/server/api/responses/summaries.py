"""Summaries of conversations, as the text of compaction items.

Clients treat that text as opaque. It is not encrypted: whoever may send messages may write any.
"""

import base64
import binascii

__all__ = ["read_summary", "write_summary"]

_MARK = b"ortolan:"


def write_summary(summary: str) -> str:
    """Turn a summary into the text of an item."""
    return base64.b64encode(_MARK + summary.encode()).decode()


def read_summary(text: str) -> str | None:
    """Return the summary of an item; `None` if another server wrote it."""
    try:
        data = base64.b64decode(text, validate=True)
        return data.removeprefix(_MARK).decode() if data.startswith(_MARK) else None
    except (binascii.Error, ValueError):
        return None
