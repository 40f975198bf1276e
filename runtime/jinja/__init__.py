"""Renders Jinja templates that somebody else wrote, in bounded time and memory."""

from importlib.util import find_spec

from ortolan.runtime.errors import MissingExtraError

if find_spec("jinja2") is None:
    raise MissingExtraError(
        'chat: expected the package jinja2, got none. Run: pip install "ortolan[chat]"'
    )
