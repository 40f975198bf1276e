"""Serves bundles over HTTP, with the interfaces of OpenAI's API.

    from ortolan.server import Settings, build_app

    app = build_app(Settings(bundles={"smollm2": Path("smollm2/")}))  # any ASGI server runs it

`ortolan serve` runs it with uvicorn. Needs `ortolan[serve]`. The server is a client of
`ortolan.runtime`: handlers in `api/` turn a body into a request of a service, and its pieces into
events. One process loads each bundle once; every client shares its service.
"""

from importlib.util import find_spec

from ortolan.distribution import pip_install
from ortolan.runtime.errors import MissingExtraError

for _package in ("starlette", "uvicorn"):
    if find_spec(_package) is None:
        raise MissingExtraError(
            f"ortolan.server needs {_package}, which is not installed. Run: {pip_install('serve')}"
        )

from ortolan.server.app import build_app  # noqa: E402 - after the check
from ortolan.server.settings import Settings  # noqa: E402

__all__ = ["Settings", "build_app"]
