"""One choice of a completion, whole or in parts."""

from collections.abc import AsyncIterator, Sequence
from typing import Literal

import msgspec

from ortolan.runtime import Completion, Ticket, Tokenizer, TokenLogprobs
from ortolan.runtime.inputs.tokenizer import no_tokenizer
from ortolan.server.api.text_logprobs import TextLogprobs, TextLogprobsWriter, joined

Finish = Literal["stop", "length"]


class TextChoice(msgspec.Struct, kw_only=True):
    """A continuation, or in a stream a part of one."""

    index: int
    text: str
    finish_reason: Finish | None
    logprobs: TextLogprobs | None = None


class ChoiceReader(AsyncIterator[TextChoice]):
    """The parts of a choice; the last one has the finish reason."""

    def __init__(
        self,
        index: int,
        ticket: Ticket[Completion],
        *,
        tokenizer: Tokenizer | None,
        with_logprobs: bool,
        prompt: str | list[int] | None,
    ) -> None:
        if tokenizer is None:
            raise no_tokenizer("complete a prompt")
        self.ticket = ticket if not with_logprobs else ticket.pieces()
        self._index = index
        self._writer = TextLogprobsWriter(tokenizer) if with_logprobs else None
        self._echo = tokenizer.decode(prompt) if isinstance(prompt, list) else prompt
        self._parts = self._read()

    async def __anext__(self) -> TextChoice:
        """Wait for the next part; raises what `Ticket.result` does at the end."""
        return await anext(self._parts)

    async def whole(self) -> TextChoice:
        """Wait for all parts and join them; raises what `Ticket.result` does."""
        parts = [part async for part in self]
        return TextChoice(
            index=self._index,
            text="".join(part.text for part in parts),
            finish_reason=parts[-1].finish_reason,
            logprobs=joined([part.logprobs for part in parts if part.logprobs is not None]),
        )

    async def _read(self) -> AsyncIterator[TextChoice]:
        async for piece in self.ticket:
            if self._writer is None and not piece.content:
                continue
            if self._echo is not None:
                yield self._echoed()
            yield self._part(piece.content, piece.logprobs)
        completion = await self.ticket
        if self._echo is not None:
            yield self._echoed()
        part = self._part("", None)
        part.finish_reason = "length" if completion.finish_reason == "length" else "stop"
        yield part

    def _echoed(self) -> TextChoice:
        """The prompt, once it has been computed."""
        text, self._echo = self._echo or "", None
        sequence = self.ticket.work
        return self._part(text, sequence.prompt_logprobs, first=sequence.request.prompt[0])

    def _part(
        self, text: str, scores: Sequence[TokenLogprobs] | None, *, first: int | None = None
    ) -> TextChoice:
        logprobs = None
        if self._writer is not None and scores is not None:
            logprobs = self._writer.write(scores, first=first)
        return TextChoice(index=self._index, text=text, finish_reason=None, logprobs=logprobs)
