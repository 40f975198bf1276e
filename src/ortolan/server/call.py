"""`Call`: one request while it is answered."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request

from ortolan.errors import OrtolanError
from ortolan.runtime import EncoderCall, Reply, Ticket
from ortolan.runtime.errors import ContextLengthError, MemoryPlanError
from ortolan.server.models import Models, ServedModel
from ortolan.server.store import Store

R = TypeVar("R")
C = TypeVar("C", bound=Ticket[Any] | EncoderCall[Any])


class Call(AsyncExitStack):
    """A request, and what it holds until its answer is sent: a model and tickets.

    Attributes:
        notes: what the access log says of the call, such as the model and token counts.
        body: of the request, as it came, if the log needs it.
    """

    def __init__(self, request: Request, models: Models, store: Store) -> None:
        super().__init__()
        self.request = request
        self.models = models
        self.store = store
        self.notes: dict[str, Any] = {}
        self.body = b""
        self._tickets: list[Ticket[Any] | EncoderCall[Any]] = []

    async def model(self, name: str | None) -> ServedModel:
        """Return a model, loaded if necessary, which stays loaded until the call ends."""
        model = await self.enter_async_context(self.models.use(name))
        self.notes["model"] = model.name
        return model

    async def submit(self, submit: Callable[[], list[C]]) -> list[C]:
        """Run `submit` in a thread; the tickets that it returns are cancelled when the call ends.

        If memory is short, models that no call uses are dropped first.
        """
        try:
            return await self._submitted(submit)
        except MemoryPlanError:
            if not await self.models.drop_unused():
                raise
        return await self._submitted(submit)

    async def submit_fitted(
        self, submit: Callable[[int | None], list[C]], limit: int | None
    ) -> list[C]:
        """Submit with a limit of new tokens; the context's own, if the limit exceeds that.

        Clients send a fixed limit with any prompt, and the finish reason tells them the difference.
        """
        try:
            return await self.submit(partial(submit, limit))
        except ContextLengthError:
            if not limit:
                raise
        return await self.submit(partial(submit, None))

    async def encoded(self, submit: Callable[[], EncoderCall[R]]) -> tuple[R, int]:
        """Submit a request of an encoder. Returns its result, and the number of tokens."""
        (ticket,) = await self.submit(lambda: [submit()])
        self.notes["prompt_tokens"] = ticket.tokens
        return await ticket, ticket.tokens

    async def _submitted(self, submit: Callable[[], list[C]]) -> list[C]:
        work = asyncio.ensure_future(asyncio.to_thread(submit))
        try:
            tickets = await asyncio.shield(work)
        except asyncio.CancelledError:
            with suppress(Exception):  # a thread cannot be stopped, but what it submitted can
                _cancel(await work)
            raise
        self.callback(_cancel, tickets)
        self._tickets += tickets
        return tickets

    def note_tokens(self, prompt_tokens: int, new_tokens: int) -> None:
        """Note counts for the log."""
        self.notes |= {"prompt_tokens": prompt_tokens, "new_tokens": new_tokens}

    def texts(self) -> list[str]:
        """Texts generated for the call, complete or not, for the log."""
        return [_text(ticket) for ticket in self._tickets if isinstance(ticket, Ticket)]


def _cancel(tickets: Iterable[Ticket[Any] | EncoderCall[Any]]) -> None:
    for ticket in tickets:
        ticket.cancel()


def _text(ticket: Ticket[Any]) -> str:
    try:
        result = ticket.result(0)
    except TimeoutError:
        return "(unfinished)"
    except OrtolanError as error:
        return f"({error})"
    text: str = (result.completion if isinstance(result, Reply) else result).text
    return text
