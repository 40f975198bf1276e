"""Seq2Seq service: one loaded encoder-decoder for many concurrent requests."""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypedDict, Unpack

from ortolan.runtime.arguments import refuse_unknown
from ortolan.runtime.encoding.batches import batches
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.memory_plan import RequestMemory
from ortolan.runtime.engine.sources import Encoded
from ortolan.runtime.errors import InputError
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.generation.options import BeamOptions, checked_beams
from ortolan.runtime.generation.request import Request
from ortolan.runtime.generation.request_reader import RequestReader
from ortolan.runtime.inputs.audio import Sound
from ortolan.runtime.inputs.input_reader import Input, InputReader, is_batch
from ortolan.runtime.inputs.tokenizer import Tokenizer
from ortolan.runtime.serving.generation_service import GenerationService
from ortolan.runtime.serving.ticket import Ticket
from ortolan.runtime.transcription.transcriber import TranscribeOptions, Transcriber
from ortolan.runtime.transcription.transcript import Transcript


class Seq2SeqServeOptions(TypedDict, total=False):
    """Options of `Seq2Seq.serve`, all optional.

    Attributes:
        slots: maximum number of sources that are decoded together; 8 by default.
        queue: maximum number of waiting requests; 64 by default.
    """

    slots: int
    queue: int


class Seq2SeqService(GenerationService):
    """Generates from many sources at once. Any thread and any event loop may use it.

        with model.serve(slots=8) as service:
            ticket = service.submit("I live in Paris.")
            print(ticket.result().text)  # or: for piece in ticket, or: await ticket

    New sources are encoded between decode steps, those of similar length together. Requests run in
    order of arrival. Each result equals that of `Seq2Seq.generate` for the source alone up to
    rounding: where two tokens are almost equally likely, the text may differ. (Of 60 sentences
    through models/numerals, all had the same tokens as alone, greedy and sampled, and 44 the same
    log-probabilities to the bit.)

    Raises:
        InputError: an option is invalid.
    """

    def __init__(
        self,
        engine: Engine,
        requests: RequestReader,
        sources: InputReader,
        start: int,
        tokenizer: Tokenizer | None,
        **options: Unpack[Seq2SeqServeOptions],
    ) -> None:
        refuse_unknown("serve", options, Seq2SeqServeOptions.__optional_keys__)
        self._requests = requests
        self._sources = sources
        self._start = start
        self._tokenizer = tokenizer
        super().__init__(
            engine,
            partial(Generator, encode=partial(_encoded, engine, sources)),
            RequestMemory(engine.manifest, is_on_host=engine.is_on_host),
            slots=options.get("slots", 8),
            queue=options.get("queue", 64),
        )

    def submit(
        self, source: Input, *, first: str | int | None = None, **options: Unpack[BeamOptions]
    ) -> Ticket[Completion]:
        """Submit a request. It is checked at once, and computed when it is its turn.

        Args:
            source: text, token ids or an image.
            first: as for `Seq2Seq.generate`.
            **options: see `ortolan.runtime.generation.options.Options`. There are no beam searches.

        Raises:
            OrtolanError: as `Service.submit`.
        """
        with self._counting_refusals():
            if is_batch(source):
                raise InputError("submit accepts a single source. Submit each source on its own.")
            beams, others = checked_beams(options)
            if beams.beams > 1:
                raise InputError(
                    "A service has no beam searches. Leave beams out, or use `Seq2Seq.generate`."
                )
            requests = self._requests.sources(
                [self._sources.read(source)], others, start=self._start, first=first
            )
            (ticket,) = self._submit_requests(self._requests, requests, priority=0)
        return ticket

    def transcribe(self, sound: Sound, **options: Unpack[TranscribeOptions]) -> Transcript:
        """Transcribe a sound, and wait for it. Its windows are computed with other requests.

        Args:
            sound: as for `Seq2Seq.transcribe`.
            **options: as for `Seq2Seq.transcribe`.

        Raises:
            QueueFullError: the queue is full; the error says when to try again. Once the first
                window was accepted, the others wait for their place.
            OrtolanError: as `submit` and `Seq2Seq.transcribe`.
        """
        with self._counting_refusals() as parts:

            def run(requests: Sequence[Request]) -> list[Completion]:
                tickets: list[Ticket[Completion]] = parts.submit(
                    self._submit_requests, self._requests, requests, priority=0
                )
                return [ticket.result() for ticket in tickets]

            transcriber = Transcriber(
                self._engine.manifest,
                self._requests,
                self._tokenizer,
                run,
                start=self._start,
                options=options,
            )
            (transcript,) = transcriber.whole([sound])
        return transcript


def _encoded(engine: Engine, reader: InputReader, sources: Sequence[Any]) -> Encoded:
    """Encode sources in batches of similar length, and return them in their order."""
    lengths = [len(source) if isinstance(source, list) else 1 for source in sources]
    parts: dict[int, Encoded] = {}
    for batch in batches(lengths):
        calls = reader.calls([sources[index] for index in batch])
        encoded = engine.joined([engine.encode_sources(feeds) for feeds in calls])
        for place, index in enumerate(batch):
            parts[index] = Encoded(
                lengths=encoded.lengths[place : place + 1],
                states=tuple(values[place : place + 1] for values in encoded.states),
            )
    return engine.joined([parts[index] for index in range(len(sources))])
