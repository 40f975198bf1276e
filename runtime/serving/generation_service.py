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
from ortolan.runtime.serving.base_service import MAX_QUEUE, BaseService
from ortolan.runtime.serving.stats import GenerationCounts, ServiceStats
from ortolan.runtime.serving.ticket import Ticket
from ortolan.runtime.serving.worker import Worker

if TYPE_CHECKING:
    from ortolan.runtime.chat.chat import Question
    from ortolan.runtime.engine.engine import Engine

MAX_SLOTS = 256
"""Maximum number of sequences in one decode step."""


class GenerationService(BaseService):
    """Generates for many requests at once."""

    def __init__(
        self,
        engine: "Engine",
        generator: Callable[[int], Generator],
        memory: RequestMemory,
        *,
        slots: int,
        queue: int,
        prefixes: PrefixCache | None = None,
    ) -> None:
        slots = checked_count("slots", slots, most=MAX_SLOTS)
        queue = checked_count("queue", queue, most=MAX_QUEUE)
        self._memory = memory
        self._slots = slots
        self._prefixes = prefixes
        self._counts = GenerationCounts()
        worker = Worker(
            generator(slots),
            engine=engine,
            slots=slots,
            queue=queue,
            counts=self._counts,
            at_end=None if prefixes is None else prefixes.close,
        )
        super().__init__(engine, worker)

    def stats(self) -> ServiceStats:
        """Current load, and totals since the start.

        Raises:
            ForkedError: the process was forked after loading.
        """
        self._engine.check_process()
        manifest, held_tokens = self._engine.manifest, self._worker.held_tokens
        per_row = manifest.state_bytes("replace")
        return self._worker.load(
            lambda running, waiting: self._counts.stats(
                slots=self._slots,
                running=running,
                waiting=waiting,
                state_bytes=row_bytes(manifest, held_tokens, running) + running * per_row,
                cache=PrefixCounts() if self._prefixes is None else self._prefixes.counts,
            )
        )

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
        tickets = [
            self._ticket(reader, request, question and question.again()) for request in requests
        ]
        self._worker.submit(tickets, priority=priority)
        return tickets

    def _ticket(
        self, reader: RequestReader, request: Request, question: "Question | None"
    ) -> Ticket[Any]:
        cancelled = request.cancelled
        if cancelled is not None:
            # an exception of the caller's function must not end other sequences
            request = replace(request, cancelled=lambda: _is_cancelled(cancelled, ticket))
        ticket: Ticket[Any] = Ticket(
            reader.sequence(request, streams=True),
            question=question,
            has_text=self._engine.manifest.tokenizer is not None,
            lock=self._worker.lock,
            cancel=self._worker.cancel,
            check=self._engine.check_process,
        )
        return ticket


def _is_cancelled(cancelled: Callable[[], bool], ticket: Ticket[Any]) -> bool:
    try:
        return cancelled()
    except Exception as error:
        failure = InputError(f"cancel: the function raised {type(error).__name__}: {error}.")
        failure.__cause__ = error
        ticket.fail(failure)
        return True
