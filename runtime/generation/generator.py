"""Generator: brings texts forward together, each from its prompt to its end.

A round is at most one call of the model. Before it, texts that were cancelled leave and waiting
ones take free slots; after it, every text that got logits chooses its next token. Texts come and
go between rounds, and none sees the others.

    generator = Generator(engine, slots=2)
    generator.submit(text)
    while generator.round():
        ...
    text.completion()

Knows texts, slots and rounds. Does not know how a text chooses its tokens.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ortolan.errors import OrtolanError
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.session import Engine
from ortolan.runtime.engine.slots import Encoded
from ortolan.runtime.generation.completion import FinishReason
from ortolan.runtime.generation.request import Request
from ortolan.runtime.generation.scheduler import Scheduler

__all__ = ["Generator", "Text"]


class Text(Protocol):
    """A text while it is generated: `SampledText` or `SearchedText`."""

    request: Request
    finish_reason: FinishReason | None
    prefill_s: float

    @property
    def next_tokens(self) -> Sequence[int]:
        """The token to append next to each of its rows."""

    @property
    def parents(self) -> Sequence[int]:
        """The row that each of its rows goes on from."""

    def advance(self, logits: NDArray[np.float32], /) -> None:
        """Take the logits that follow: `(V,)`, of a search with G beams `(G, V)`."""

    def finish(self, reason: FinishReason) -> None:
        """End the text, unless it has ended."""

    def fail(self, error: OrtolanError) -> None:
        """End the text by an error."""


_Running = tuple[int, Text, NDArray[np.float32]]
"""A slot, the text that runs there, and where its logits appear."""


class Generator:
    """Texts that share slots. Not to be used from two threads at once.

    Args:
        engine: the sessions to compute with.
        slots: texts that are computed together, at most; the others wait.
        beams: rows of each text.
        encode: computes what the decoder reads of some sources, for a decoder with an encoder.
        rows_multiple: see `Runner`.
        prefill_first: see `Scheduler`.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        slots: int,
        beams: int = 1,
        encode: Callable[[Sequence[Any]], Encoded] | None = None,
        rows_multiple: int = 1,
        prefill_first: bool = True,
    ) -> None:
        slots = -(-slots // rows_multiple) * rows_multiple
        self._runner = Runner(engine, engine.slots(slots, beams=beams), rows_multiple=rows_multiple)
        self._scheduler: Scheduler[Text] = Scheduler(slots, prefill_first=prefill_first)
        self._beams = beams
        self._encode = encode
        self._cancellable: list[Text] = []
        self._prefilled: dict[int, int] = {}
        self._running: list[_Running] | None = None

    def submit(self, text: Text) -> None:
        """Let a text join as soon as a slot is free."""
        self._scheduler.submit(text)
        if text.request.cancelled is not None:
            self._cancellable.append(text)

    def run(self) -> None:
        """Bring all texts to their end.

        Raises:
            ForkedError: the process was forked after the engine was made.
        """
        while self.round():
            pass

    def round(self) -> bool:
        """Do the next piece of work; `False` when all texts have ended.

        A text whose logits are not finite fails alone: its completion raises the error.

        Raises:
            ForkedError: the process was forked after the engine was made.
        """
        if self._cancellable:
            self._retire_cancelled()
        if self._scheduler.waiting:
            self._admit()
        match self._scheduler.next():
            case "step":
                self._step()
            case "prefill":
                if self._encode is None:
                    self._prefill()
                else:
                    self._prefill_sources(self._encode)
            case None:
                return False
        return True

    # --- joining and leaving ----------------------------------------------------------------------

    def _retire_cancelled(self) -> None:
        answers: dict[int, bool] = {}  # by identity: not every callable has a hash
        for text in list(self._cancellable):
            cancelled = text.request.cancelled
            if text.finish_reason is not None or cancelled is None:
                self._cancellable.remove(text)
                continue
            if id(cancelled) not in answers:
                answers[id(cancelled)] = cancelled()
            if answers[id(cancelled)]:
                text.finish("cancelled")
                self._leave(text)
                self._cancellable.remove(text)

    def _admit(self) -> None:
        admitted = self._scheduler.admit()
        longest = max((len(text.request.prompt) for _, text in admitted), default=0)
        if longest > 0:
            # one more: a row that rests in a step is written to just after its valid part
            self._runner.reserve(min(longest + 1, self._runner.slots.context_length))
        for slot, _ in admitted:
            self._prefilled[slot] = 0

    def _leave(self, text: Text) -> None:
        slot = self._scheduler.finish(text)
        self._running = None
        if slot is not None:
            self._runner.slots.release(slot)
            for last, free in self._scheduler.compact():
                self._runner.slots.move(last, free)

    # --- the model --------------------------------------------------------------------------------

    def _prefill(self) -> None:
        """Compute the next chunk of the prompt whose turn it is."""
        slot, text = next(iter(self._scheduler.prefilling.items()))
        begun_at, prompt = time.monotonic(), text.request.prompt
        start = self._prefilled[slot]
        end = min(len(prompt), start + self._runner.chunk_tokens(slot))
        part = prompt[start:end]
        logits_RV = self._runner.chunk(slot, part, positions=[len(part) - 1])
        self._prefilled[slot] = end
        text.prefill_s += time.monotonic() - begun_at
        if end == len(prompt):
            self._scheduler.start(slot)
            self._running = None
            self._advance(text, logits_RV[0])
            if text.finish_reason is not None:
                self._leave(text)

    def _prefill_sources(self, encode: Callable[[Sequence[Any]], Encoded]) -> None:
        """Encode the sources of all texts that have just got a slot; their first step follows."""
        begun_at = time.monotonic()
        prefilling = dict(self._scheduler.prefilling)
        encoded = encode([text.request.source for text in prefilling.values()])
        self._runner.put_sources(list(prefilling), encoded)
        for slot, text in prefilling.items():
            text.prefill_s = time.monotonic() - begun_at
            self._scheduler.start(slot)
        self._running = None

    def _step(self) -> None:
        """Append a token to every running text."""
        runner, running = self._runner, self._running
        if running is None:
            running = self._running = self._select()
        if self._beams == 1:
            runner.step([text.next_tokens[0] for _, text, _ in running])
        else:
            runner.step([token for _, text, _ in running for token in text.next_tokens])
        for _, text, logits in running:
            self._advance(text, logits)
        if self._beams > 1:
            self._reorder(running)
        for _, text, _ in running:
            if text.finish_reason is not None:
                self._leave(text)

    def _reorder(self, running: list[_Running]) -> None:
        """Let each beam go on from the one that it extends."""
        sources, targets = [], []
        for slot, text, _ in running:
            if text.finish_reason is None:
                for beam, parent in enumerate(text.parents):
                    if beam != parent:
                        sources.append(slot * self._beams + parent)
                        targets.append(slot * self._beams + beam)
        if targets:
            self._runner.slots.copy_rows(sources, targets)

    def _select(self) -> list[_Running]:
        """The running texts by slot, each with where its logits appear."""
        beams, logits_BV = self._beams, self._runner.logits_BV
        running = sorted(self._scheduler.running.items())
        self._runner.select([slot * beams + beam for slot, _ in running for beam in range(beams)])
        if beams == 1:
            return [(slot, text, logits_BV[slot]) for slot, text in running]
        return [
            (slot, text, logits_BV[slot * beams : (slot + 1) * beams]) for slot, text in running
        ]

    def _advance(self, text: Text, logits: NDArray[np.float32]) -> None:
        try:
            text.advance(logits)
        except OrtolanError as error:
            text.fail(error)
