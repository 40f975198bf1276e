"""A model inside your own web application: many users, one loaded bundle.

    pip install "ortolan[serve]"
    python examples/web_app.py bundle/
    curl -N http://127.0.0.1:8000/complete -d '{"prompt": "def main("}'

The route streams the text. The request is cancelled when the reader disconnects, and answered with
status 503 when the queue is full. `ortolan serve` is a complete server with OpenAI's API.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

import ortolan


async def complete(request: Request) -> Response:
    """Continue the prompt in the body."""
    body = await request.json()
    service: ortolan.Service = request.app.state.service
    try:
        ticket = service.submit(body["prompt"], max_new_tokens=64)
    except ortolan.QueueFullError as error:
        return PlainTextResponse(str(error), 503)
    except (ortolan.InputError, ortolan.ContextLengthError) as error:
        return PlainTextResponse(str(error), 400)

    async def pieces() -> AsyncIterator[str]:
        try:
            async for piece in ticket:
                yield piece.content
        finally:
            ticket.cancel()  # the reader may have left; does nothing after the end

    return StreamingResponse(pieces(), media_type="text/plain")


def build_app(bundle: str) -> Starlette:
    """The application; it loads the bundle when it starts."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        with ortolan.load(bundle, ortolan.Decoder).serve(slots=8) as service:
            app.state.service = service
            yield

    return Starlette(routes=[Route("/complete", complete, methods=["POST"])], lifespan=lifespan)


if __name__ == "__main__":
    uvicorn.run(build_app(sys.argv[1]), host="127.0.0.1", port=8000)
