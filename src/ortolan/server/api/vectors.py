"""Embeddings of texts, as a service computes them."""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.text_source import TextSource
from ortolan.runtime.serving.ticket import EncoderTicket
from ortolan.server.call import Call
from ortolan.server.errors import ApiError
from ortolan.server.models import ServedModel


class InputUsage(msgspec.Struct, kw_only=True):
    """Token counts of a request without completions."""

    prompt_tokens: int
    total_tokens: int


def expect_texts(served: ServedModel, *, what: str) -> TextSource:
    """Return the source of an encoder of texts."""
    served.expect("encoder", what=what)
    source = served.model.manifest.source
    if not isinstance(source, TextSource):
        raise ApiError(
            f"The model {served.name!r} reads images, and the server accepts texts only.",
            param="model",
        )
    return source


async def embedded(
    call: Call, served: ServedModel, inputs: list[Any], *, prompt: str | None, truncate: bool
) -> tuple[NDArray[np.float32], int]:
    """Embed inputs.

    Returns:
        float32 `(inputs, width)`, and the number of tokens.
    """
    tickets: list[EncoderTicket[NDArray[np.float32]]] = await call.submit(
        lambda: [served.service.embed(inputs, prompt=prompt, truncate=truncate)]
    )
    (ticket,) = tickets
    call.notes["prompt_tokens"] = ticket.tokens
    return await ticket, ticket.tokens


def unit_rows(rows_NW: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale rows to length 1."""
    lengths_N1 = np.linalg.norm(rows_NW, axis=1, keepdims=True)
    units: NDArray[np.float32] = rows_NW / np.maximum(lengths_N1, np.finfo(np.float32).tiny)
    return units
