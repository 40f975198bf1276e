"""One conversation: its tokens, and the cache of what the model computed for them.

Knows ids and logits. Does not know text, sampling, or when to stop.
"""

import math
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import checked_count, checked_path
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.slots import Snapshot
from ortolan.runtime.engine.state_file import read_states, write_states
from ortolan.runtime.errors import ContextLengthError, InputError, NumericError, StateFileError
from ortolan.runtime.inputs.ids import TokenIds, checked_ids

__all__ = ["Session", "SessionSnapshot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSnapshot:
    """A session as it was.

    Attributes:
        tokens: its ids.
        states: what the model computed for them, copied.
    """

    tokens: tuple[int, ...]
    states: Snapshot


class Session:
    """Tokens appended one by one or many at once, each computed a single time.

        with model.session() as session:
            logits = session.append(model.tokenizer.encode("def main("))
            logits = session.append([int(logits.argmax())])
            session.rewind(len(session) - 1)  # take the last token back

    Two sessions of one model may be used in two threads at once. One session belongs to one
    thread at a time: a second thread that comes in between gets an `InputError`, since waiting
    would only mix two conversations.

    An error leaves a session as it was.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._runner = Runner(engine, engine.slots())
        self._runner.select([0])
        self._tokens: list[int] = []
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids so far."""
        return tuple(self._tokens)

    def __len__(self) -> int:
        """Count the tokens so far."""
        return len(self._tokens)

    def append(self, ids: TokenIds) -> NDArray[np.float32]:
        """Append tokens and compute what follows them.

        Args:
            ids: at least one.

        Returns:
            Logits of the last position, `(vocab,)`; the caller's own.

        Raises:
            ContextLengthError: the session would be longer than the context.
            InputError: no ids, an id outside the vocabulary, a closed session, or another
                thread is using it.
            NumericError: the logits are not finite.
            ForkedError: the process was forked after the model was loaded.
        """
        manifest = self._engine.manifest
        new = checked_ids(ids, vocab_size=manifest.vocab_size, what="append", fewest=1)
        with self._in_use():
            length = len(self._tokens) + len(new)
            if length > manifest.context_length:
                raise ContextLengthError(
                    f"append: expected at most {manifest.context_length} tokens, got "
                    f"{len(self._tokens)} and {len(new)} more. Rewind, or begin a new session."
                )
            with self._runner.slots.unchanged_on_error():
                logits = self._compute(new)
                if not math.isfinite(logits.max()):  # -inf marks what may not be chosen
                    raise NumericError(
                        f"append: expected finite logits, got others after token {length - 1}. "
                        "The model is damaged: run `ortolan verify` on its bundle."
                    )
            self._tokens += new
        return logits

    def rewind(self, length: int) -> None:
        """Forget the tokens after the first `length`. Costs nothing.

        Raises:
            InputError: not a whole number; the session is shorter or closed, another thread is
                using it, or a state of the model cannot go back.
        """
        length = checked_count("rewind", length, least=0)
        with self._in_use():
            self._runner.slots.rewind(length)
            del self._tokens[length:]

    def snapshot(self) -> SessionSnapshot:
        """Keep the session as it is now: to go back to it, or to go on from it twice.

        Raises:
            InputError: the session is closed, or another thread is using it.
        """
        with self._in_use():
            return SessionSnapshot(tokens=tuple(self._tokens), states=self._runner.slots.snapshot())

    def restore(self, snapshot: SessionSnapshot) -> None:
        """Become what a session of the same model was, this one or another.

        Raises:
            InputError: it is no snapshot, or one of another bundle; the session is closed, or
                another thread is using it.
            MemoryError: there is no memory; the session is as it was.
        """
        if not isinstance(snapshot, SessionSnapshot):
            raise InputError(
                f"restore: expected what `snapshot` gave, got {type(snapshot).__name__}."
            )
        with self._in_use():
            self._become(snapshot.tokens, snapshot.states)

    def fork(self) -> "Session":
        """Another session with the same tokens; from there on each goes its own way.

        Raises:
            InputError: the session is closed, or another thread is using it.
            MemoryError: there is no memory.
        """
        other = Session(self._engine)
        with self._in_use():
            other._become(self._tokens, self._runner.slots.view())
        return other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tokens, and what was computed for them, to a file.

        `Decoder.load_session` goes on from there, in another process or on another day. A file
        that is there is replaced.

        Raises:
            InputError: the session is closed, or another thread is using it.
            StateFileError: the place cannot be written to; what was there is as it was.
        """
        place = checked_path("save", path)
        with self._in_use():
            try:
                write_states(place, self._tokens, self._runner.slots.view())
            except (OSError, ValueError) as error:  # ValueError: a path without a name, such as "/"
                raise StateFileError(
                    f"{path}: the session cannot be saved there: {error}. Choose another file."
                ) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str], engine: Engine) -> Self:
        """What a session was when it was saved; see `Decoder.load_session`."""
        session = cls(engine)
        try:
            ids, states = read_states(checked_path("load_session", path), session._runner.slots)
        except OSError as error:
            raise StateFileError(
                f"load_session: expected a file that can be read, got {error}. "
                "Give the path that `save` was given."
            ) from error
        session._become(
            checked_ids(ids, vocab_size=engine.manifest.vocab_size, what=f"{path}"), states
        )
        return session

    def close(self) -> None:
        """Give the memory back. Closing twice is no error.

        Raises:
            InputError: another thread is using the session.
        """
        if self._is_closed:
            return
        with self._in_use():
            self._is_closed = True
            self._tokens.clear()
            del self._runner

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _become(self, tokens: Iterable[int], states: Snapshot) -> None:
        self._runner.restore(states)
        self._tokens = list(tokens)

    def _compute(self, new: list[int]) -> NDArray[np.float32]:
        if len(new) > 1:
            return self._runner.prefill(0, new)
        self._runner.step(new)
        logits_V: NDArray[np.float32] = self._runner.logits_BV[0].copy()
        return logits_V

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise InputError(
                "session: expected one thread at a time, got a second one. "
                "Give each thread a session of its own."
            )
        try:
            if self._is_closed:
                raise InputError("session: expected an open one, got a closed one.")
            yield
        finally:
            self._lock.release()
