"""`/health`, `/ready` and `/metrics`."""

from starlette.responses import PlainTextResponse

from ortolan.server.api.metrics import metrics_text
from ortolan.server.call import Call
from ortolan.server.errors import ApiError


async def health(_: Call) -> dict[str, str]:
    """Tell that the process answers."""
    return {"status": "ok"}


async def ready(call: Call) -> dict[str, str]:
    """Tell whether a model is loaded, and all of them answer. If not, load what can be loaded."""
    if failing := call.models.revive():
        message = f"The latest requests to {', '.join(failing)} failed. See the server's log."
        raise ApiError(message, type="server_error", code="failing", status=503)
    if not call.models.loaded:
        raise ApiError("No model is loaded yet.", type="server_error", code="loading", status=503)
    return {"status": "ready"}


async def metrics(call: Call) -> PlainTextResponse:
    """Load and totals of the loaded models, for Prometheus."""
    text = metrics_text(call.models.loaded)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")
