"""`/v1/audio/transcriptions` and `/v1/audio/translations`.

Source: https://platform.openai.com/docs/api-reference/audio
"""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal

import msgspec

from ortolan.runtime import Sampling, Segment, Seq2Seq, Transcript
from ortolan.runtime.bundle.sources import AudioSource, WaveSource
from ortolan.server.api.bodies import Body
from ortolan.server.call import Call
from ortolan.server.endpoints import Answer, Endpoint, Text
from ortolan.server.errors import ApiError
from ortolan.server.forms import FORM
from ortolan.server.models import ServedModel

__all__ = ["ENDPOINTS"]

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
        granularities: of the times in `verbose_json`; only segments have times.
    """

    language: str | None = None
    granularities: list[Literal["segment"]] | None = msgspec.field(
        name="timestamp_granularities[]", default=None
    )


class SegmentReply(msgspec.Struct, kw_only=True):
    """A segment, with times in seconds."""

    id: int
    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    avg_logprob: float


class TranscriptionReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A transcript; all but the text are left out of `json`."""

    text: str
    task: str | None = None
    language: str | None = None
    duration: float | None = None
    segments: list[SegmentReply] | None = None


async def transcribe(call: Call, body: TranscriptionBody) -> Answer:
    """Write down what is said, in its language."""
    return await _answer(call, body, language=body.language, task="transcribe")


async def translate(call: Call, body: TranslationBody) -> Answer:
    """Write down what is said, in English."""
    return await _answer(call, body, language=None, task="translate")


async def _answer(call: Call, body: TranslationBody, *, language: str | None, task: str) -> Answer:
    served = await call.model(body.model)
    _expect_sounds(served)
    cancelled = threading.Event()
    try:
        transcript: Transcript = await asyncio.get_running_loop().run_in_executor(
            THREADS,
            partial(
                served.service.transcribe,
                body.file,
                language=language,
                translate=task == "translate",
                sampling=Sampling(temperature=body.temperature) if body.temperature else None,
                cancel=cancelled,
            ),
        )
    finally:
        cancelled.set()  # a thread cannot be stopped, but what it generates can
    match body.response_format:
        case "text":
            return Text(text=f"{transcript.text}\n", media_type="text/plain")
        case "srt":
            return Text(text=transcript.srt, media_type="text/plain")
        case "vtt":
            return Text(text=transcript.vtt, media_type="text/vtt")
        case "verbose_json":
            return TranscriptionReply(
                text=transcript.text,
                task=task,
                language=transcript.language,
                duration=transcript.seconds,
                segments=[_segment(number, own) for number, own in enumerate(transcript.segments)],
            )
        case _:
            return TranscriptionReply(text=transcript.text)


def _segment(number: int, segment: Segment) -> SegmentReply:
    return SegmentReply(
        id=number,
        start=segment.start,
        end=segment.end,
        text=segment.text,
        tokens=segment.tokens,
        avg_logprob=segment.logprob,
    )


def _expect_sounds(served: ServedModel) -> None:
    served.expect(Seq2Seq.kind, what="transcribe")
    if not isinstance(served.model.manifest.source, AudioSource | WaveSource):
        raise ApiError(
            status=400,
            message=f"The model {served.name!r} reads {served.model.manifest.takes}, not sounds. "
            "Choose another from /v1/models.",
            code="bundle-kind",
            param="model",
        )


ENDPOINTS = [
    Endpoint(
        method="POST",
        path="/v1/audio/transcriptions",
        handler=transcribe,
        body=TranscriptionBody,
        media_type=FORM,
        answer=TranscriptionReply,
        summary="Transcribe a sound.",
    ),
    Endpoint(
        method="POST",
        path="/v1/audio/translations",
        handler=translate,
        body=TranslationBody,
        media_type=FORM,
        answer=TranscriptionReply,
        summary="Translate a sound into English text.",
    ),
]
