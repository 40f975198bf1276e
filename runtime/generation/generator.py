"""Generator: advances sequences together, each from its prompt to its end.

    generator = Generator(engine, slots=2)
    generator.submit(sequence)
    while generator.round():
        ...
    sequence.completion()

A round is one call of the model: a chunk of a prompt, or a decode step of all running sequences,
plus one call for each sequence with a draft.

    cancelled sequences leave ─► waiting ones enter ─► chunk ─► sequence chooses its first token
                                  (`Scheduler`)     └► step  ─► sequences choose their next tokens

Sequences come and go between rounds and do not affect each other.

After an exception of a round, `recover` lets the others go on:

    a call of the model failed   the rows are as before it: its sequences try again, each alone
    anything else                all states are in doubt: every sequence starts again (`restart`)
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortolan.errors import OrtolanError
from ortolan.runtime.engine.attention_kernels import CHUNK, GRID
from ortolan.runtime.engine.memory_plan import RequestMemory
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.sources import Encoded
from ortolan.runtime.errors import ComputeError, typed
from ortolan.runtime.generation.active_sequence import ActiveSequence
from ortolan.runtime.generation.drafts import Draft, Speculation
from ortolan.runtime.generation.scheduler import Round, Scheduler

if TYPE_CHECKING:
    from ortolan.runtime.engine.engine import Engine
    from ortolan.runtime.engine.prefix_cache import PrefixCache
    from ortolan.runtime.generation.last_prompt import LastPrompt

_BySlot = dict[int, ActiveSequence]

_Row = tuple[int, ActiveSequence, NDArray[np.float32]]
"""A slot, its sequence, and a view of its logits: `(V,)`, or `(G, V)` with G beams."""


class Generator:
    """Sequences that share slots. One thread at a time may use it."""

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
        multiple = engine.exactness.rows_multiple if exact else 1
        slots = -(-slots // multiple) * multiple
        if last_prompt is not None:
            chunk = last_prompt.chunk
        self._engine = engine
        self._new_slots = partial(engine.slots, slots, beams=beams, reserved=reserved)
        self._new_runner = partial(Runner, engine, exact=exact, chunk=chunk)
        self._beams = beams
        self._encode = encode
        self._prefixes = prefixes
        self._last_prompt = last_prompt
        self._runner = self._new_runner(
            self._new_slots() if last_prompt is None else last_prompt.slots
        )
        self._scheduler = Scheduler(self._runner, memory, prefill_first=prefill_first)
        # what a decode step computes; selected again when the scheduler's `running` has changed
        self._selected = -1
        self._rows: list[_Row] = []
        self._drafted: list[tuple[int, ActiveSequence]] = []
        # for `recover`: the present work, whom it prefills, and the sequence whose own code failed
        self._work: Round | None = None
        self._prefilled: list[ActiveSequence] = []
        self._culprit: ActiveSequence | None = None

    def submit(self, sequence: ActiveSequence, *, priority: int = 0) -> None:
        """Let a sequence join once a slot is free, or held by one of a lower priority."""
        self._scheduler.submit(sequence, priority=priority)

    def cancel(self, sequence: ActiveSequence) -> None:
        """End an unfinished sequence. Its slot is free at once."""
        sequence.finish("cancelled")
        self._scheduler.leave(sequence)

    @property
    def in_slots(self) -> int:
        """Number of sequences that hold a slot."""
        return len(self._scheduler.prefilling) + len(self._scheduler.running)

    @property
    def held_tokens(self) -> int:
        """Tokens whose states are in memory."""
        return self._scheduler.held_tokens

    def run(self) -> None:
        """Generate until all sequences have ended; see `round`."""
        while self.round():
            pass

    def round(self) -> bool:
        """Do the next piece of work. `False` if all sequences have ended.

        A sequence whose logits are not finite fails alone: its completion raises the error.
        """
        self._work = None
        for sequence in self._scheduler.cancelled():
            self.cancel(sequence)
        if self._scheduler.waiting:
            self._scheduler.admit()
        self._work = self._scheduler.next()
        match self._work:
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

    def recover(self, error: Exception) -> None:
        """Go on after an exception of `round` or `cancel`. Not for beams or `last_prompt`.

        A sequence whose work fails `TRIES` times, and does not get on in between, ends with the
        error. Each of the others gets the tokens that it would have got.
        """
        for sequence in (failed := self._failed()):
            if sequence is self._culprit or not sequence.may_try_again():
                sequence.fail(typed(error))
        is_call = self._work is not None and isinstance(error, ComputeError)
        try:
            if not (is_call and self._engine.is_on_host):  # a device may have lost its memory
                self._restart()
            else:
                self._repeat(failed)
        except Exception:
            self._restart()

    def _failed(self) -> list[ActiveSequence]:
        """Sequences whose work has just failed; all that might be the reason, in doubt."""
        if self._culprit is not None:
            return [self._culprit]
        begun, tried = self._scheduler.in_slots, list[ActiveSequence]()
        if self._work == "step":
            tried = [sequence for _, sequence, _ in self._rows]
        elif self._work == "prefill":
            tried = self._prefilled
        failed = [sequence for sequence in begun if sequence in tried and not sequence.is_done]
        return failed or [*begun, *self._scheduler.waiting[:1]]

    def _repeat(self, failed: Sequence[ActiveSequence]) -> None:
        """Try a call of the model again, for each of its sequences alone."""
        for sequence in failed:
            if sequence.finish_reason is not None:
                self._scheduler.leave(sequence)
            elif self._work == "prefill" and self._encode is None:
                # parts of the chunk may be there already
                prefilling = self._scheduler.prefilling.items()
                self._runner.slots.release(next(s for s, other in prefilling if other is sequence))
                sequence.restart()
            else:
                sequence.is_apart = True
        self._selected = -1

    def _restart(self) -> None:
        """Compute the states of all unfinished sequences again, in new slots."""
        self._runner = self._new_runner(self._new_slots())
        self._scheduler.restart(self._runner)
        self._selected, self._culprit = -1, None

    def _prefill(self) -> None:
        """Compute the next chunk of the first prompt."""
        slot, sequence = self._scheduler.next_prompt()
        self._prefilled = [sequence]
        started_at, prompt = time.monotonic(), sequence.request.prompt
        conversation, slots = sequence.request.conversation, self._runner.slots
        start = self._runner.rewind_to_cut(slot, prompt)
        is_scored = sequence.request.prompt_logprobs is not None
        sequence.cached_tokens = min(sequence.cached_tokens, start)
        if start == 0 and self._prefixes is not None and not is_scored:
            # not at admission: the sequence before may just have computed a shared prefix
            self._prefixes.fetch(prompt, slots, slot)
            if conversation is not None:
                self._prefixes.fetch_end(conversation, prompt, slots, slot)
            sequence.cached_tokens = start = self._runner.rewind_to_cut(slot, prompt)
        end = self._runner.chunk_end(slot, prompt, start)
        chunk = prompt[start:end]
        positions = range(len(chunk)) if is_scored else [len(chunk) - 1]
        logits_RV = self._runner.chunk(slot, chunk, positions=positions)
        if self._prefixes is not None:
            whole = end - end % GRID
            if whole > start:
                self._prefixes.offer(prompt, slots, slot, whole)
        if self._last_prompt is not None:
            self._last_prompt.record(prompt, start, end)
        if sequence.request.draft is not None:
            self._try(sequence, self._draft, sequence, sequence.request.draft, start)
        sequence.prefill_s += time.monotonic() - started_at
        sequence.prefilled_tokens = end
        if is_scored:
            self._try(sequence, sequence.score_prompt, start, logits_RV)
        if end == len(prompt) and sequence.finish_reason is None:
            self._scheduler.start(slot)
            if sequence.request.limit == 0:
                sequence.finish("length")
            else:
                self._try(sequence, sequence.advance, logits_RV[-1])
            if self._prefixes is not None and conversation is not None:
                self._prefixes.offer_end(conversation, prompt, slots, slot)
        if sequence.finish_reason is not None:
            self._scheduler.leave(sequence)

    def _prefill_sources(self, encode: Callable[[Sequence[Any]], Encoded]) -> None:
        """Encode the sources of all sequences that were just given a slot."""
        started_at = time.monotonic()
        prefilling = self._one_apart(dict(self._scheduler.prefilling))
        self._prefilled = list(prefilling.values())
        encoded = encode([sequence.request.source for sequence in self._prefilled])
        self._runner.put_sources(list(prefilling), encoded)
        for slot, sequence in prefilling.items():
            sequence.prefill_s = time.monotonic() - started_at
            self._scheduler.start(slot)

    def _step(self) -> None:
        """Append a token to every running sequence; several where a draft is right."""
        if self._selected != self._scheduler.revision:
            self._select()
        rows, drafted = self._rows, self._drafted
        if rows:
            self._runner.step([token for _, sequence, _ in rows for token in sequence.next_tokens])
            for _, sequence, logits in rows:
                self._try(sequence, sequence.advance, logits)
            if self._beams > 1:
                self._reorder()
        for slot, sequence in drafted:
            if sequence.speculation is not None:
                advance = partial(self._try, sequence, sequence.advance)
                self._try(sequence, sequence.speculation.step, slot, advance)
        # at the end: when a sequence leaves, others may move to other slots
        for sequence in [*(row[1] for row in rows), *(sequence for _, sequence in drafted)]:
            if sequence.finish_reason is not None:
                self._scheduler.leave(sequence)

    def _select(self) -> None:
        """Select the running sequences, separate those with a draft, and find their logits."""
        beams, logits_BV = self._beams, self._runner.logits_BV
        everyone = self._scheduler.running
        chosen = self._one_apart(everyone)
        running = sorted(chosen.items())
        plain = [(slot, sequence) for slot, sequence in running if sequence.request.draft is None]
        self._drafted = [item for item in running if item[1].request.draft is not None]
        if plain:
            self._runner.select([slot * beams + beam for slot, _ in plain for beam in range(beams)])
        places = [
            slot if beams == 1 else slice(slot * beams, (slot + 1) * beams) for slot, _ in plain
        ]
        self._rows = [(*item, logits_BV[at]) for item, at in zip(plain, places, strict=True)]
        self._selected = self._scheduler.revision if chosen is everyone else -1

    def _one_apart(self, sequences: _BySlot) -> _BySlot:
        """The first of the sequences that is to be computed alone, if any; else all."""
        for slot, sequence in sequences.items():
            if sequence.is_apart:
                sequence.is_apart = False
                return {slot: sequence}
        return sequences

    def _reorder(self) -> None:
        """Copy the states of each beam's parent into its row."""
        sources, targets = [], []
        for slot, sequence, _ in self._rows:
            if sequence.finish_reason is None:
                for beam, parent in enumerate(sequence.parents):
                    if beam != parent:
                        sources.append(slot * self._beams + parent)
                        targets.append(slot * self._beams + beam)
        if targets:
            self._runner.slots.copy_rows(sources, targets)

    def _draft(self, sequence: ActiveSequence, draft: Draft, start: int) -> None:
        """Let the drafts of a sequence begin, and read the states of a chunk from `start` on."""
        if sequence.speculation is None:
            sequence.speculation = Speculation(draft, sequence, self._runner)
        sequence.speculation.observe(start, self._runner.hidden_SE)

    def _try(self, sequence: ActiveSequence, work: Callable[..., None], *args: Any) -> None:
        """Do work whose errors end this sequence only."""
        try:
            work(*args)
        except OrtolanError as error:
            sequence.fail(error)
        except Exception:
            self._culprit = sequence
            raise
