"""`/v1/embeddings`.

Source: https://platform.openai.com/docs/api-reference/embeddings
"""

import asyncio
import base64
from functools import partial
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.text_source import TextSource
from ortolan.server.api.bodies import Body, Inputs, listed
from ortolan.server.call import Call
from ortolan.server.errors import ApiError
from ortolan.server.models import ServedModel


class EmbeddingsBody(Body, kw_only=True, forbid_unknown_fields=True):
    """Inputs to embed: a text, token ids, or a list of either.

    Attributes:
        dimensions: the model's own width.
        prompt_name: name of a prompt of the model, such as `query`, to put before texts; by default
            the model's default prompt.
        truncate: cut texts that are too long, at the end.
    """

    input: Inputs
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    prompt_name: str | None = None
    truncate: bool | None = None


class Embedding(msgspec.Struct, kw_only=True):
    """A vector, as numbers or as base64 of little-endian float32."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class InputUsage(msgspec.Struct, kw_only=True):
    """Token counts of a request without completions."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(msgspec.Struct, kw_only=True):
    """Vectors in the order of the inputs."""

    model: str
    data: list[Embedding]
    usage: InputUsage
    object: Literal["list"] = "list"


async def create(call: Call, body: EmbeddingsBody) -> Embeddings:
    """Embed one or more inputs."""
    served = await call.model(body.model)
    expect_texts(served, what="embed")
    width = served.model.manifest.output.size
    if body.dimensions not in (None, width):
        raise ApiError(
            f"dimensions must be {width}, the width of this model's vectors (got "
            f"{body.dimensions}).",
            param="dimensions",
        )
    options = {"prompt": body.prompt_name, "truncate": bool(body.truncate)}
    vectors_NW, tokens = await call.encoded(
        partial(served.service.embed, listed(body.input), **options)
    )
    return Embeddings(
        model=served.name,
        data=await asyncio.to_thread(_encoded, vectors_NW, body.encoding_format),
        usage=InputUsage(prompt_tokens=tokens, total_tokens=tokens),
    )


def expect_texts(served: ServedModel, *, what: str) -> TextSource:
    """Return the source of an encoder of texts."""
    served.expect("encoder", what=what)
    source = served.model.manifest.source
    if not isinstance(source, TextSource):
        raise ApiError(
            f"The model {served.name!r} reads {source.words}, and the server accepts texts only.",
            param="model",
        )
    return source


def _encoded(vectors_NW: NDArray[np.float32], form: str | None) -> list[Embedding]:
    def encoded(row_W: NDArray[np.float32]) -> list[float] | str:
        if form == "base64":
            return base64.b64encode(row_W.astype("<f4").tobytes()).decode()
        numbers: list[float] = row_W.tolist()
        return numbers

    return [Embedding(index=n, embedding=encoded(row_W)) for n, row_W in enumerate(vectors_NW)]
