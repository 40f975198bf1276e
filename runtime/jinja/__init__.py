"""Renders untrusted Jinja templates in bounded time and memory."""

from importlib.util import find_spec

from ortolan.distribution import pip_install
from ortolan.runtime.errors import MissingExtraError

if find_spec("jinja2") is None:
    raise MissingExtraError(f"Chat templates need jinja2. Run: {pip_install('chat')}")
