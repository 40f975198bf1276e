"""`/v1/audio/transcriptions` and `/v1/audio/translations`.

Source: https://platform.openai.com/docs/api-reference/audio
"""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal

import msgspec
from starlette.responses import PlainTextResponse

from ortolan.runtime import InputError, Sampling, Transcript
from ortolan.server.api.bodies import Body
from ortolan.server.call import Call
from ortolan.server.errors import ApiError
from ortolan.server.models import ServedModel

THREADS = ThreadPoolExecutor(64, "ortolan-transcription")
"""Threads that wait for transcripts. Those of asyncio are few, and other requests need them."""

ResponseFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]


class TranslationBody(Body, kw_only=True, forbid_unknown_fields=True):
    """A sound to translate into English.

    Attributes:
        file: WAV, FLAC, MP3, OGG or AIFF.
        response_format: what the answer holds.
        temperature: 0, the default, takes the most probable tokens.
    """

    file: bytes
    response_format: ResponseFormat = "json"
    temperature: float = 0.0


class TranscriptionBody(TranslationBody, kw_only=True, forbid_unknown_fields=True):
    """A sound to transcribe.

    Attributes:
        language: code of the spoken language; recognized by default.
        granularities: of the times in `verbose_json`; words have times if the model gives them.
    """

    language: str | None = None
    granularities: list[Literal["segment", "word"]] | None = msgspec.field(
        name="timestamp_granularities[]", default=None
    )


class SegmentReply(msgspec.Struct, kw_only=True):
    """A segment, with times in seconds."""

    id: int = 0
    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    logprob: float = msgspec.field(name="avg_logprob")


class WordReply(msgspec.Struct, kw_only=True):
    """A word, with times in seconds."""

    text: str = msgspec.field(name="word")
    start: float
    end: float


class TranscriptionReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A transcript; all but the text are left out of `json`."""

    text: str
    task: str | None = None
    language: str | None = None
    seconds: float | None = msgspec.field(name="duration", default=None)
    segments: list[SegmentReply] | None = None
    words: list[WordReply] | None = None


async def transcribe(call: Call, body: TranscriptionBody) -> TranscriptionReply | PlainTextResponse:
    """Transcribe a sound in its language."""
    own = {} if body.language is None else {"language": body.language}
    granularities = body.granularities or ["segment"]
    return await _answer(call, body, own, task="transcribe", has_words="word" in granularities)


async def translate(call: Call, body: TranslationBody) -> TranscriptionReply | PlainTextResponse:
    """Translate a sound into English text."""
    return await _answer(call, body, {"translate": True}, task="translate", has_words=False)


async def _answer(
    call: Call, body: TranslationBody, own: Mapping[str, Any], *, task: str, has_words: bool
) -> TranscriptionReply | PlainTextResponse:
    served = await call.model(body.model)
    cancelled = threading.Event()
    options = {**own, **served.options, "cancel": cancelled}
    if body.temperature:
        options["sampling"] = Sampling(temperature=body.temperature)
    work = partial(served.service.transcribe, body.file, **options)
    try:
        loop = asyncio.get_running_loop()
        transcript: Transcript = await loop.run_in_executor(THREADS, work)
    finally:
        cancelled.set()  # a thread cannot be stopped, but what it generates can
    match body.response_format:
        case "text":
            return PlainTextResponse(f"{transcript.text}\n")
        case "srt":
            return PlainTextResponse(transcript.srt)
        case "vtt":
            return PlainTextResponse(transcript.vtt, media_type="text/vtt")
        case "verbose_json":
            return _verbose(transcript, served, task=task, has_words=has_words)
        case _:
            return TranscriptionReply(text=transcript.text)


def _verbose(
    transcript: Transcript, served: ServedModel, *, task: str, has_words: bool
) -> TranscriptionReply:
    reply = msgspec.convert(transcript, TranscriptionReply, from_attributes=True)
    reply.task = task
    for number, segment in enumerate(reply.segments or ()):
        segment.id = number
    if has_words:
        if any(segment.text and not segment.words for segment in transcript.segments):
            raise ApiError(
                f"The model {served.name!r} gives no times of words. Ask for those of "
                "segments, or choose a model with CTC, such as wav2vec 2.0.",
                code=InputError.code,
                param="timestamp_granularities[]",
            )
        words = [word for segment in transcript.segments for word in segment.words]
        reply.words = msgspec.convert(words, list[WordReply], from_attributes=True)
    return reply
