"""Generator: brings texts forward together, each from its prompt to its end.

A round is at most one call of the model, and one more for each text with a draft. Before it, texts
that were cancelled leave and waiting ones take free slots; after it, every text that got logits
chooses its next token. Texts come and go between rounds, and none sees the others.

    generator = Generator(engine, slots=2)
    generator.submit(text)
    while generator.round():
        ...
    text.completion()

A text of a higher priority may take the slot of one of a lower priority. What that one has so far
is copied, and put into a slot again when it has its turn: it gives what it would have given.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ortolan.errors import OrtolanError
from ortolan.runtime.engine.attention_kernels import CHUNK
from ortolan.runtime.engine.memory_plan import RequestMemory
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.slots import Encoded, Snapshot
from ortolan.runtime.errors import MemoryPlanError
from ortolan.runtime.generation.completion import FinishReason
from ortolan.runtime.generation.request import Request
from ortolan.runtime.generation.scheduler import Scheduler
from ortolan.runtime.generation.speculation import Speculation

if TYPE_CHECKING:
    from ortolan.runtime.engine.engine import Engine
    from ortolan.runtime.engine.prefix_cache import PrefixCache
    from ortolan.runtime.generation.last_prompt import LastPrompt

__all__ = ["Generator", "Text"]


class Text(Protocol):
    """A text while it is generated: `SampledSequence` or `BeamSequence`.

    Attributes:
        prefill_s: seconds that its prompt took so far.
        prefilled_tokens: tokens of its prompt that have their states, once a part was computed.
        cached_tokens: of its prompt, how many were not computed for it but for another.
        drafted_tokens: guesses at its tokens; `accepted_tokens` of them were right.
    """

    request: Request
    finish_reason: FinishReason | None
    prefill_s: float
    prefilled_tokens: int
    cached_tokens: int
    drafted_tokens: int
    accepted_tokens: int

    @property
    def next_tokens(self) -> Sequence[int]:
        """The token to append next to each of its rows."""

    @property
    def forced(self) -> Sequence[int]:
        """Tokens that come after that one, whatever the model says; often none."""

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
        exact: whether a text is the same, to the bit, whatever the texts beside it; see `Runner`.
        chunk: most tokens of a prompt in one call; see `Runner`.
        prefill_first: see `Scheduler`.
        reserved: see `Slots`.
        memory: a text waits until there is memory for all of its tokens; `None` never looks.
        prefixes: the prefix cache, for decoders only.
        last_prompt: the slots to generate in, whose first row holds the beginning of the prompt.
    """

    def __init__(
        self,
        engine: "Engine",
        *,
        slots: int,
        beams: int = 1,
        encode: Callable[[Sequence[Any]], Encoded] | None = None,
        exact: bool = False,
        chunk: int = CHUNK,
        prefill_first: bool = True,
        reserved: bool = False,
        memory: RequestMemory | None = None,
        prefixes: "PrefixCache | None" = None,
        last_prompt: "LastPrompt | None" = None,
    ) -> None:
        multiple = engine.rows_multiple if exact else 1
        slots = -(-slots // multiple) * multiple
        if last_prompt is None:
            states = engine.slots(slots, beams=beams, reserved=reserved)
        else:
            states, chunk = last_prompt.slots, last_prompt.chunk
        self._runner = Runner(engine, states, exact=exact, chunk=chunk)
        self._scheduler: Scheduler[Text] = Scheduler(slots, prefill_first=prefill_first)
        self._beams = beams
        self._encode = encode
        self._memory = memory
        self._prefixes = prefixes
        self._last_prompt = last_prompt
        self._cancellable: list[Text] = []
        self._suspended: dict[Text, Snapshot] = {}
        self._speculations: dict[Text, Speculation] = {}
        self._running: list[_Running] | None = None
        self._drafted: list[tuple[int, Text]] = []

    def submit(self, text: Text, *, priority: int = 0) -> None:
        """Let a text join as soon as a slot is free, or has a text of a lower priority."""
        self._scheduler.submit(text, priority=priority)
        if text.request.cancelled is not None:
            self._cancellable.append(text)

    def cancel(self, text: Text) -> None:
        """End a text that was submitted and has not ended; its slot is free at once."""
        text.finish("cancelled")
        self._leave(text)

    @property
    def in_slots(self) -> int:
        """Texts that have a slot."""
        return len(self._scheduler.prefilling) + len(self._scheduler.running)

    @property
    def held_tokens(self) -> int:
        """Tokens whose states are in memory."""
        kept = sum(snapshot.length for snapshot in self._suspended.values())
        return sum(self._runner.slots.lengths) + kept

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
                self.cancel(text)
                self._cancellable.remove(text)

    def _admit(self) -> None:
        """Give slots to texts that wait, as far as there are slots and memory."""
        scheduler, admitted = self._scheduler, []
        while scheduler.waiting:
            text = scheduler.waiting[0]
            outranked = scheduler.outranked() if scheduler.is_full else None
            if scheduler.is_full and outranked is None:
                break
            error = self._lack(text)
            if error is not None:
                begun = self._begun()
                if not begun:  # nothing will end and make room for it
                    text.fail(error)
                    self._leave(text)
                    continue
                # texts that are suspended have their room, and need a slot to end
                suspended = [other for other in begun if other in self._suspended]
                if scheduler.is_full or not suspended:
                    break
                text = suspended[0]
            elif outranked is not None:
                self._suspend(outranked)
            admitted.append((scheduler.admit(text), text))
        if admitted:
            self._enter(admitted)

    def _enter(self, admitted: list[tuple[int, Text]]) -> None:
        """Fill the rows of texts that have got their slots with what is known of them."""
        runner = self._runner
        longest = max(len(text.request.prompt) for _, text in admitted)
        # one more: a row that rests in a step is written to just after its valid part
        runner.reserve(min(longest + 1, runner.slots.context_length))
        for slot, text in admitted:
            prompt, snapshot = text.request.prompt, self._suspended.pop(text, None)
            if snapshot is not None:
                runner.restore(snapshot, row=slot)
                if snapshot.length >= len(prompt):
                    self._scheduler.start(slot)
                    self._running = None

    def _begun(self) -> list[Text]:
        """The texts that the memory plan has room for: those in slots, and the suspended ones."""
        scheduler = self._scheduler
        suspended = [text for text in scheduler.waiting if text in self._suspended]
        return [*scheduler.prefilling.values(), *scheduler.running.values(), *suspended]

    def _lack(self, text: Text) -> MemoryPlanError | None:
        """Why there is no memory for a text that waits, beside those that have begun."""
        if self._memory is None or text in self._suspended:
            return None
        planned = [each.request for each in (*self._begun(), text)]
        try:
            self._memory.check(
                tokens=sum(len(request.prompt) + request.limit for request in planned),
                rows=len(planned),
                held_tokens=self.held_tokens,
            )
        except MemoryPlanError as error:
            return error
        return None

    def _suspend(self, text: Text) -> None:
        """Take a text off its slot, and keep what was computed for it."""
        slot = self._scheduler.suspend(text)
        self._suspended[text] = self._runner.slots.snapshot(row=slot)
        self._runner.slots.release(slot)
        self._running = None

    def _leave(self, text: Text) -> None:
        slot = self._scheduler.finish(text)
        self._suspended.pop(text, None)
        self._speculations.pop(text, None)
        self._running = None
        if slot is not None:
            self._runner.slots.release(slot)
            for last, free in self._scheduler.compact():
                self._runner.slots.move(last, free)

    # --- the model --------------------------------------------------------------------------------

    def _prefill(self) -> None:
        """Compute the next part of the prompt whose turn it is."""
        slot, text = self._scheduler.next_prompt()
        begun_at, prompt = time.monotonic(), text.request.prompt
        conversation = text.request.conversation
        start = self._runner.slots.lengths[slot]
        if start == 0 and self._prefixes is not None:
            # only now: what it shares with the text before it may have been computed meanwhile
            start = self._prefixes.fetch(prompt, self._runner.slots, slot)
            if conversation is not None:
                start = self._prefixes.fetch_end(conversation, prompt, self._runner.slots, slot)
            text.cached_tokens = start
        end = min(len(prompt), start + self._runner.chunk_tokens(slot))
        part = prompt[start:end]
        logits_RV = self._runner.chunk(slot, part, positions=[len(part) - 1])
        if self._prefixes is not None:
            whole = end - end % self._prefixes.grid
            if whole > start:
                self._prefixes.offer(prompt, self._runner.slots, slot, whole)
        if self._last_prompt is not None:
            self._last_prompt.record(prompt, start, end)
        text.prefill_s += time.monotonic() - begun_at
        text.prefilled_tokens = end
        if end == len(prompt):
            self._scheduler.start(slot)
            self._running = None
            self._advance(text, logits_RV[0])
            if self._prefixes is not None and conversation is not None:
                self._prefixes.offer_end(conversation, prompt, self._runner.slots, slot)
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
        """Append a token to every running text, to one with a draft perhaps several."""
        runner, running = self._runner, self._running
        if running is None:
            running = self._running = self._select()
        drafted = self._drafted
        if running:
            if self._beams == 1:
                runner.step([text.next_tokens[0] for _, text, _ in running])
            else:
                runner.step([token for _, text, _ in running for token in text.next_tokens])
            for _, text, logits in running:
                self._advance(text, logits)
            if self._beams > 1:
                self._reorder(running)
        for slot, text in drafted:
            self._speculate(slot, text)
        # only now: leaving may move others to other slots
        for text in [*(text for _, text, _ in running), *(text for _, text in drafted)]:
            if text.finish_reason is not None:
                self._leave(text)

    def _speculate(self, slot: int, text: Text) -> None:
        """Append some tokens to a text that has a draft, which alone fails where that is wrong."""
        draft, speculation = text.request.draft, self._speculations.get(text)
        try:
            if speculation is None and draft is not None:
                speculation = Speculation(draft, text, self._runner)
                self._speculations[text] = speculation
            if speculation is not None:
                speculation.step(slot, partial(self._advance, text))
        except OrtolanError as error:
            text.fail(error)

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
        """The running texts without a draft by slot, each with where its logits appear."""
        beams, logits_BV = self._beams, self._runner.logits_BV
        items = sorted(self._scheduler.running.items())
        running = [(slot, text) for slot, text in items if text.request.draft is None]
        self._drafted = [(slot, text) for slot, text in items if text.request.draft is not None]
        if not running:
            return []
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
