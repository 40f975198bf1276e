"""Tickets of encoders: a result that comes all at once."""

from typing import TypeVar

from ortolan.runtime.encoding.call import EncoderCall
from ortolan.runtime.serving.base_ticket import BaseTicket
from ortolan.runtime.serving.signals import Woken

R = TypeVar("R")


class EncoderTicket(BaseTicket[EncoderCall[R], R]):
    """A request of an encoder's service. Any thread and any event loop may use it.

        vectors = ticket.result()     # or: await ticket

    Leaving a `with` block cancels an unfinished request.
    """

    @property
    def tokens(self) -> int:
        """Number of tokens of all texts, special tokens included."""
        return self.work.tokens

    def result(self, timeout: float | None = None) -> R:
        """Wait for the result, which is that of the same method of `Encoder`.

        Args:
            timeout: maximum wait in seconds; `None` waits without limit.

        Raises:
            TimeoutError: the wait ended first; the request continues.
            concurrent.futures.CancelledError: the request was cancelled.
            InputError: the timeout is not a number, or an image is not valid.
            NumericError: the output is not finite.
            ServiceError: the service failed.
            ForkedError: the process was forked after loading.
        """
        return self._waited(timeout, "result")

    def deliver(self, woken: Woken) -> bool:
        """Wake the readers when the call has ended, and return whether it has."""
        if self.work.is_done:
            self.end(woken)
        return self.work.is_done

    def _completed(self) -> R:
        return self.work.result()
