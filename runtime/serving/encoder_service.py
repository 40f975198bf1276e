"""Encoder service: one loaded encoder for many concurrent requests."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import checked_integer, refuse_unknown
from ortolan.runtime.encoding.call import EncoderCall, Row
from ortolan.runtime.encoding.classification import Classification, classify_call
from ortolan.runtime.encoding.queue import EncoderQueue
from ortolan.runtime.encoding.rows import Rows
from ortolan.runtime.encoding.vectors import embed_call, logits_call, states_call, wave_call
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.errors import InputError
from ortolan.runtime.inputs.audio import Sound
from ortolan.runtime.inputs.input_reader import Inputs, is_batch
from ortolan.runtime.serving.base_service import BaseService
from ortolan.runtime.serving.stats import Counts, EncoderStats, with_call
from ortolan.runtime.serving.worker import Worker
from ortolan.runtime.transcription.ctc import CtcOptions, transcribe_ctc
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


class EncoderService(BaseService):
    """Computes many requests at once. Any thread and any event loop may use it.

        with model.serve() as service:
            call = service.embed(["a text", "another"])
            vectors = call.result()  # or: await call

    Inputs of similar length are computed together, whichever request they belong to. So results
    equal those of `Encoder` up to rounding; with int8 activations, up to their quantization error.
    (All 179 texts of a test on models/snippets were bit-identical alone and in batches, in float32
    and with int8 weights, on a processor with AVX-512.) A request of many inputs takes turns with
    later ones.

    Raises:
        InputError: an option is invalid.
    """

    def __init__(self, engine: Engine, rows: Rows, **options: Unpack[EncoderServeOptions]) -> None:
        refuse_unknown("serve", options, EncoderServeOptions.__optional_keys__)
        self._rows, self._calls = rows, EncoderQueue(rows)
        counts = Counts(EncoderStats(), with_call)
        super().__init__(engine, self._calls, counts, slots=0, queue=options.get("queue", 64))

    def embed(
        self,
        inputs: Inputs,
        *,
        prompt: str | None = None,
        truncate: bool = False,
        priority: int = 0,
    ) -> EncoderCall[NDArray[np.float32]]:
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
    ) -> EncoderCall[list[Classification]]:
        """Submit inputs, to be classified. Same arguments and errors as `embed`."""
        return self._submit(
            inputs, priority, lambda: classify_call(self._rows, inputs, truncate=truncate)
        )

    def states(
        self, inputs: Inputs, *, truncate: bool = False, priority: int = 0
    ) -> EncoderCall[list[Row]]:
        """Submit inputs, for `Encoder.states`. Same arguments and errors as `embed`."""
        return self._submit(
            inputs, priority, lambda: states_call(self._rows, inputs, truncate=truncate)
        )

    def logits(
        self, inputs: Inputs, *, truncate: bool = False, priority: int = 0
    ) -> EncoderCall[list[Row]]:
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
        with self._counting_refusals() as parts:
            return transcribe_ctc(
                sound,
                self._engine.manifest,
                lambda wave_N: parts.submit(
                    self._submit_call, wave_call(self._rows, wave_N), 0
                ).result(),
                options,
            )

    def stats(self) -> EncoderStats:
        """Current load, and totals since the start.

        Raises:
            ForkedError: the process was forked after loading.
        """
        self._engine.check_usable()
        stats: EncoderStats = self._worker.stats()
        return replace(stats, batches=self._calls.batches)

    def _submit(
        self, inputs: Any, priority: int, make: Callable[[], EncoderCall[R]]
    ) -> EncoderCall[R]:
        with self._counting_refusals():
            priority = checked_integer("priority", priority)
            if is_batch(inputs) and len(inputs) > MAX_INPUTS:
                raise InputError(
                    f"A request accepts at most {MAX_INPUTS} inputs (got {len(inputs)}). "
                    "Submit several."
                )
            return self._submit_call(make(), priority)

    def _submit_call(self, call: EncoderCall[R], priority: int) -> EncoderCall[R]:
        call.check = self._engine.check_usable
        self._worker.submit({call: None}, priority=priority)
        call.add_done_callback(partial(_forget, self._worker))
        return call


def _forget(worker: Worker, call: Any) -> None:
    """Let the queue forget a call that was cancelled."""
    if call.cancelled():
        call.set_running_or_notify_cancel()  # ends `concurrent.futures.wait`
        worker.post(lambda rounds: rounds.cancel(call))
