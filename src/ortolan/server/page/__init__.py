"""The page at `/`: a chat with the served models, in static files.

The files need no build step and ask no other host.
"""

from functools import partial
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import Route

__all__ = ["page_routes"]

_FOLDER = Path(__file__).parent / "files"

_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
}

_MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
"""By suffix. Python's table depends on the system, and browsers reject scripts of other types."""


def page_routes() -> list[Route]:
    """A route for each file, and `/` for the page itself."""
    files = {f"/{path.relative_to(_FOLDER).as_posix()}": path for path in _FOLDER.rglob("*.*")}
    files["/"] = _FOLDER / "index.html"
    return [
        Route(path, partial(_file, file), methods=["GET"]) for path, file in sorted(files.items())
    ]


async def _file(path: Path, _: Request) -> FileResponse:
    return FileResponse(path, headers=_HEADERS, media_type=_MEDIA_TYPES[path.suffix])
