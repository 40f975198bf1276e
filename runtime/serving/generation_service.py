"""The base of services that generate: from checked requests to tickets."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ortolan.runtime.arguments import checked_count, checked_integer
from ortolan.runtime.engine.memory_plan import RequestMemory
from ortolan.runtime.engine.prefix_cache import PrefixCache, PrefixCounts
from ortolan.runtime.engine.windows import row_bytes
from ortolan.runtime.errors import InputError
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.generation.request import Request, check_memory
from ortolan.runtime.generation.request_reader import RequestReader
from ortolan.runtime.serving.base_service import BaseService
from ortolan.runtime.serving.stats import Counts, ServiceStats, with_sequence
from ortolan.runtime.serving.ticket import Ticket

if TYPE_CHECKING:
    from ortolan.runtime.chat.chat import Question
    from ortolan.runtime.engine.engine import Engine
    from ortolan.runtime.generation.sampled_sequence import SampledSequence

MAX_SLOTS = 256
"""Maximum number of sequences in one decode step."""


class GenerationService(BaseService):
    """Generates for many requests at once."""

    def __init__(
        self,
        engine: "Engine",
        generator: Callable[..., Generator],
        memory: RequestMemory,
        *,
        slots: int,
        queue: int,
        prefixes: PrefixCache | None = None,
    ) -> None:
        slots = checked_count("slots", slots, most=MAX_SLOTS)
        self._memory = memory
        self._prefixes = prefixes
        super().__init__(
            engine,
            generator(engine, slots=slots, prefill_first=False, reserved=True, memory=memory),
            Counts(ServiceStats(slots=slots, cache=PrefixCounts()), with_sequence),
            slots=slots,
            queue=queue,
            at_end=None if prefixes is None else prefixes.close,
        )

    def stats(self) -> ServiceStats:
        """Current load, and totals since the start.

        Raises:
            ForkedError: the process was forked after loading.
        """
        self._engine.check_usable()
        manifest, held_tokens = self._engine.manifest, self._worker.held_tokens
        stats: ServiceStats = self._worker.stats()
        per_row = manifest.state_bytes("replace")
        state_bytes = row_bytes(manifest, held_tokens, stats.running) + stats.running * per_row
        if self._prefixes is None:
            return replace(stats, state_bytes=state_bytes)
        return replace(stats, state_bytes=state_bytes, cache=self._prefixes.counts)

    def _submit_requests(
        self,
        reader: RequestReader,
        requests: Sequence[Request],
        *,
        priority: int,
        question: "Question | None" = None,
    ) -> list[Ticket[Any]]:
        """Queue all requests, or none; those of a question get replies."""
        priority = checked_integer("priority", priority)
        for request in requests:  # each alone: if they do not fit together, some wait
            check_memory(self._memory, [request], whole=True, held_tokens=self._worker.held_tokens)
        tickets: list[Ticket[Any]] = [
            Ticket(
                _sequence(reader, request),
                question=question and question.again(),
                has_text=self._engine.manifest.tokenizer is not None,
                worker=self._worker,
                check=self._engine.check_usable,
            )
            for request in requests
        ]
        self._worker.submit({ticket.work: ticket for ticket in tickets}, priority=priority)
        return tickets


def _sequence(reader: RequestReader, request: Request) -> "SampledSequence":
    """A sequence that fails alone if the caller's function of its cancellation raises."""
    poll = request.cancelled

    def is_cancelled() -> bool:
        try:
            return poll is not None and poll()
        except Exception as error:
            failure = InputError(f"cancel: the function raised {type(error).__name__}: {error}.")
            failure.__cause__ = error
            sequence.fail(failure)
            return True

    if poll is not None:
        request = replace(request, cancelled=is_cancelled)
    sequence = reader.sequence(request, streams=True)
    return sequence
