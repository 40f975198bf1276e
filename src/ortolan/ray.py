"""Ray Serve deployments of bundles, and a worker that generates for Ray datasets.

serve.run(deployment(Settings(bundles={"smol": Path("/models/smol")}), replicas=2))
dataset.map_batches(Generate, fn_constructor_args=["/models/smol"], concurrency=2)

Needs `ortolan[ray]`. Prompts with a common beginning go to the same replica, which has it cached.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import sha256
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ortolan.distribution import pip_install
from ortolan.runtime import Decoder, load
from ortolan.runtime.errors import MissingExtraError
from ortolan.server import Settings, build_app
from ortolan.server.errors import ApiError, error_body, error_response
from ortolan.server.events import event

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report its use over the network
try:
    from ray import serve
    from ray.exceptions import RayActorError
    from ray.serve.request_router import RequestRouter
except ImportError as error:
    raise MissingExtraError(f"ortolan.ray needs Ray. Run: {pip_install('ray')}") from error

PREFIX_BYTES = 512
"""Bytes of a prompt that decide the replica: about a prefix-cache block of 128 tokens."""

_PROMPT = ("model", "instructions", "tools", "messages", "prompt", "input")
_SCOPE = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "headers")
_DIED = ApiError("The replica died. Send the request again.", code="died", status=503)


def deployment(settings: Settings, *, replicas: int = 1, cpus: int = 1) -> serve.Application:
    """Describe an application for `ray.serve.run`, with the paths of `ortolan serve`.

    Every machine needs the bundles, in the same folders. A replica has as many threads as `cpus`.
    """
    options: Any = {"threads": cpus, **settings.load}
    replica = serve.deployment(
        _Replica,
        name="replica",
        num_replicas=replicas,
        max_ongoing_requests=settings.serve.get("slots", 8) + 1,  # reads one while slots are busy
        max_queued_requests=settings.serve.get("queue", 64),
        ray_actor_options={"num_cpus": cpus},
        request_router_config=serve.config.RequestRouterConfig(request_router_class=PrefixRouter),
    ).bind(replace(settings, load=options))
    ingress = serve.deployment(_Ingress, name="ingress", max_ongoing_requests=1024)
    return ingress.options(ray_actor_options={"num_cpus": 0}).bind(replica, settings.max_body_bytes)


class PrefixRouter(RequestRouter):
    """Ranks replicas by a hash of prefix and replica. The first one with room gets the request."""

    async def choose_replicas(self, candidate_replicas: Any, pending_request: Any = None) -> Any:
        """Return lists of replicas, in the order in which to try them."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # if no replica has room
        key = _key(pending_request.args[1])
        digests = {r: sha256(key + str(r.replica_id).encode()).digest() for r in candidate_replicas}
        return [[replica] for replica in sorted(digests, key=lambda r: digests[r])]


def _key(body: bytes) -> bytes:
    """The beginning of a prompt; random bytes if there is none."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return os.urandom(16)
    return msgspec.json.encode([fields.get(name) for name in _PROMPT])[:PREFIX_BYTES]


class _Replica:
    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc] # Ray awaits it
        self._app = build_app(settings)
        await self._app.state.models.load_first()

    async def answer(self, scope: Any, body: bytes) -> AsyncIterator[dict[str, Any]]:
        received: asyncio.Queue[Any] = asyncio.Queue()
        received.put_nowait({"type": "http.request", "body": body})
        messages: asyncio.Queue[Any] = asyncio.Queue()
        work = asyncio.ensure_future(self._app(scope, received.get, messages.put))
        work.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            while (message := await messages.get()) is not None:
                yield message
        finally:
            received.put_nowait({"type": "http.disconnect"})


class _Ingress:
    def __init__(self, replicas: Any, max_body_bytes: int) -> None:
        self._replicas = replicas.options(method_name="answer", stream=True)
        self._max_body_bytes = max_body_bytes

    async def __call__(self, request: Request) -> Response:
        """Pass a request to a replica, or to another one if that dies before it answers."""
        body = b""
        async for part in request.stream():
            if len(body := body + part) > self._max_body_bytes:
                break  # the replica says so
        scope = {name: request.scope[name] for name in _SCOPE} | {"root_path": ""}
        for _ in range(3):
            messages = self._replicas.remote(scope, body)
            try:
                start = await anext(messages)
            except RayActorError:
                continue
            headers = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
            return StreamingResponse(_parts(messages), start["status"], headers)
        return error_response(_DIED)


async def _parts(messages: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    try:
        async for message in messages:
            yield message["body"]
    except RayActorError:
        yield event(error_body(_DIED))  # of a stream; other bodies come with the headers


class Generate:
    """Adds the column `completion` to batches with prompts; options are those of `generate`."""

    def __init__(self, bundle: str, column: str = "prompt", threads: int = 1, **options: Any):
        self._model, self._options = load(bundle, Decoder, threads=threads), options
        self._column = column

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Continue the prompts of a batch."""
        completions = self._model.generate(list(batch[self._column]), **self._options)
        return {**batch, "completion": [completion.text for completion in completions]}
