"""Encoder service: one loaded encoder for many concurrent requests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import checked_count, checked_integer, refuse_unknown
from ortolan.runtime.encoding.call import EncoderCall, Row
from ortolan.runtime.encoding.classification import Classification, classify_call
from ortolan.runtime.encoding.rows import Rows
from ortolan.runtime.encoding.vectors import embed_call, logits_call, states_call, wave_call
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.errors import InputError
from ortolan.runtime.inputs.audio import Sound
from ortolan.runtime.inputs.source import Inputs, is_batch
from ortolan.runtime.serving.base_service import MAX_QUEUE, BaseService, patiently, waited
from ortolan.runtime.serving.encoder_queue import EncoderQueue
from ortolan.runtime.serving.stats import Counts
from ortolan.runtime.serving.ticket import EncoderTicket
from ortolan.runtime.serving.worker import Worker
from ortolan.runtime.transcription.ctc import CtcOptions, CtcTranscriber
from ortolan.runtime.transcription.transcript import Transcript

R = TypeVar("R")

MAX_INPUTS = 2048
"""Maximum number of inputs per request, which bounds what the queue holds."""


class EncoderServeOptions(TypedDict, total=False):
    """Options of `Encoder.serve`, all optional.

    Attributes:
        queue: maximum number of unfinished requests; 64 by default.
    """

    queue: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderStats:
    """Load of an encoder's service, and totals since its start.

    Attributes:
        running: unfinished requests of which some inputs have been computed.
        waiting: the other unfinished requests.
        finished: requests that have ended, for whatever reason.
        inputs: of all finished requests.
        tokens: of all finished requests.
        batches: number of calls of the graph.
        refused: rejected requests by error code.
        failed: accepted requests that ended with an error, by error code.
        failed_calls: calls of the graph that failed, most of which were repeated with success.
    """

    running: int
    waiting: int
    finished: int
    inputs: int
    tokens: int
    batches: int
    refused: Mapping[str, int]
    failed: Mapping[str, int]
    failed_calls: int


class EncoderService(BaseService):
    """Computes many requests at once. Any thread and any event loop may use it.

        with model.serve() as service:
            ticket = service.embed(["a text", "another"])
            vectors = ticket.result()  # or: await ticket

    Inputs of similar length are computed together, whichever request they belong to. So results
    equal those of `Encoder` up to rounding; with int8 activations, up to their quantization error.
    (All 179 texts of a test on models/snippets were bit-identical alone and in batches, in float32
    and with int8 weights, on a processor with AVX-512.) A request of many inputs takes turns with
    later ones.

    Leaving the `with` block finishes all accepted requests, or cancels them if the block raised. A
    service that is dropped without `close` finishes them, too; its tickets stay valid.

    Raises:
        InputError: an option is invalid.
    """

    def __init__(self, engine: Engine, rows: Rows, **options: Unpack[EncoderServeOptions]) -> None:
        refuse_unknown("serve", options, EncoderServeOptions.__optional_keys__)
        queue = checked_count("queue", options.get("queue", 64), most=MAX_QUEUE)
        self._rows = rows
        self._counts = _EncoderCounts()
        self._encoder_queue = EncoderQueue(rows)
        super().__init__(
            engine,
            Worker(self._encoder_queue, engine=engine, slots=0, queue=queue, counts=self._counts),
        )

    def embed(
        self,
        inputs: Inputs,
        *,
        prompt: str | None = None,
        truncate: bool = False,
        priority: int = 0,
    ) -> EncoderTicket[NDArray[np.float32]]:
        """Submit inputs, to be embedded. Texts are checked at once.

        Args:
            inputs: see `Encoder.embed`; at most 2048.
            prompt: see `Encoder.embed`.
            truncate: see `Encoder.embed`.
            priority: higher ones go first.

        Raises:
            QueueFullError: the queue is full; the error says when to try again.
            ServiceClosedError: the service is closed.
            ServiceError: the service has failed.
            OrtolanError: what `Encoder.embed` raises.
        """
        return self._submit(
            inputs,
            priority,
            lambda: embed_call(self._rows, inputs, prompt=prompt, truncate=truncate),
        )

    def classify(
        self, inputs: Inputs, *, truncate: bool = False, priority: int = 0
    ) -> EncoderTicket[list[Classification]]:
        """Submit inputs, to be classified. Same arguments and errors as `embed`."""
        return self._submit(
            inputs, priority, lambda: classify_call(self._rows, inputs, truncate=truncate)
        )

    def states(
        self, inputs: Inputs, *, truncate: bool = False, priority: int = 0
    ) -> EncoderTicket[list[Row]]:
        """Submit inputs, for `Encoder.states`. Same arguments and errors as `embed`."""
        return self._submit(
            inputs, priority, lambda: states_call(self._rows, inputs, truncate=truncate)
        )

    def logits(
        self, inputs: Inputs, *, truncate: bool = False, priority: int = 0
    ) -> EncoderTicket[list[Row]]:
        """Submit inputs, for `Encoder.logits`. Same arguments and errors as `embed`."""
        return self._submit(
            inputs, priority, lambda: logits_call(self._rows, inputs, truncate=truncate)
        )

    def transcribe(self, sound: Sound, **options: Unpack[CtcOptions]) -> Transcript:
        """Transcribe a sound with CTC, and wait for it. Other requests come between its windows.

        Args:
            sound: as for `Encoder.transcribe`, but no list.
            **options: as for `Encoder.transcribe`.

        Raises:
            QueueFullError: the queue is full; the error says when to try again. Once the first
                window was accepted, the others wait for their place.
            OrtolanError: as `embed` and `Encoder.transcribe`.
        """
        submit = patiently(self._submit_call)

        def compute(wave_N: NDArray[np.float32]) -> Row:
            return waited(submit(wave_call(self._rows, wave_N), 0).result)

        with self._counting_refusals():
            transcriber = CtcTranscriber(self._engine.manifest, compute, options=options)
            return transcriber.whole(sound)

    def stats(self) -> EncoderStats:
        """Current load, and totals since the start.

        Raises:
            ForkedError: the process was forked after loading.
        """
        self._engine.check_process()
        return self._worker.load(
            lambda running, waiting: EncoderStats(
                running=running,
                waiting=waiting,
                finished=self._counts.finished,
                inputs=self._counts.inputs,
                tokens=self._counts.tokens,
                batches=self._encoder_queue.batches,
                refused=dict(self._counts.refused),
                failed=dict(self._counts.failed),
                failed_calls=self._counts.failed_calls,
            )
        )

    def _submit(
        self, inputs: Any, priority: int, make: Callable[[], EncoderCall[R]]
    ) -> EncoderTicket[R]:
        with self._counting_refusals():
            priority = checked_integer("priority", priority)
            if is_batch(inputs) and len(inputs) > MAX_INPUTS:
                raise InputError(
                    f"A request accepts at most {MAX_INPUTS} inputs (got {len(inputs)}). "
                    "Submit several."
                )
            return self._submit_call(make(), priority)

    def _submit_call(self, call: EncoderCall[R], priority: int) -> EncoderTicket[R]:
        ticket = EncoderTicket(
            call,
            lock=self._worker.lock,
            cancel=self._worker.cancel,
            check=self._engine.check_process,
        )
        self._worker.submit([ticket], priority=priority)
        return ticket


class _EncoderCounts(Counts):
    """Counts requests of an encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = self.tokens = 0

    def _add(self, work: EncoderCall[Any]) -> None:
        self.inputs += len(work.items)
        self.tokens += work.tokens
