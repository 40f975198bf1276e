"""`Session`: tokens and KV cache of one sequence, controlled by the caller step by step.

Knows ids and logits. Does not know text, sampling, or when to stop.
"""

import math
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import checked_count, checked_path
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.host_states import Snapshot
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.state_file import read_states, write_states
from ortolan.runtime.errors import ContextLengthError, InputError, NumericError, StateFileError
from ortolan.runtime.inputs.ids import TokenIds, checked_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSnapshot:
    """Copy of a session's tokens and states."""

    tokens: tuple[int, ...]
    states: Snapshot


class Session:
    """A sequence that the caller extends and rewinds. Each token is computed once.

        with model.session() as session:
            logits = session.append(model.tokenizer.encode("def main("))
            logits = session.append([int(logits.argmax())])
            session.rewind(len(session) - 1)  # take the last token back

    Different sessions of a model may run in different threads. One session belongs to one thread
    at a time; a second thread gets an `InputError`.

    An error leaves the session unchanged.
    """

    def __init__(self, engine: Engine, *, adapter: int = 0) -> None:
        self._engine = engine
        self._adapter = adapter
        self._runner = Runner(engine, engine.slots())
        self._runner.slots.adapters[:] = adapter
        self._runner.select([0])
        self._tokens: list[int] = []
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids so far."""
        return tuple(self._tokens)

    def __len__(self) -> int:
        """Number of tokens so far."""
        return len(self._tokens)

    def append(self, ids: TokenIds) -> NDArray[np.float32]:
        """Append tokens, and compute the logits after the last one.

        Args:
            ids: at least one.

        Returns:
            Logits `(vocab,)`, a copy.

        Raises:
            ContextLengthError: the tokens exceed the context.
            InputError: no ids, or one outside the vocabulary; the session is closed or in use.
            NumericError: the logits are not finite.
            ForkedError: the process was forked after loading.
        """
        manifest = self._engine.manifest
        new = checked_ids(ids, vocab_size=manifest.vocab_size, what="append", fewest=1)
        with self._in_use():
            length = len(self._tokens) + len(new)
            if length > manifest.context_length:
                raise ContextLengthError(
                    f"append: {len(self._tokens)} tokens and {len(new)} more exceed the context "
                    f"of {manifest.context_length}. Rewind, or start a new session."
                )
            with self._runner.slots.unchanged_on_error(len(new)):
                if len(new) > 1:
                    logits = self._runner.prefill(0, new)
                else:
                    self._runner.step(new)
                    logits = self._runner.logits_BV[0].copy()
                if not math.isfinite(logits.max()):  # -inf alone marks forbidden tokens
                    raise NumericError(
                        f"append: the logits after token {length - 1} are not finite. "
                        "Run `ortolan verify` on the bundle."
                    )
            self._tokens += new
        return logits

    def rewind(self, length: int) -> None:
        """Forget the tokens after the first `length`. Costs nothing.

        A model with a sliding window can go back by 128 tokens at least, or to 0.

        Raises:
            InputError: not a whole number up to the current length; the session is closed or in
                use; a recurrent state cannot be rewound, or a window does not reach back that far.
        """
        length = checked_count("rewind", length, least=0)
        with self._in_use():
            self._runner.slots.rewind(length)
            del self._tokens[length:]

    def snapshot(self) -> SessionSnapshot:
        """Copy the session's tokens and states, for `restore`.

        Raises:
            InputError: the session is closed or in use.
        """
        with self._in_use():
            return SessionSnapshot(tokens=self.tokens, states=self._runner.slots.snapshot())

    def restore(self, snapshot: SessionSnapshot) -> None:
        """Go back to a snapshot of this session, or of another one of the same bundle and adapter.

        Raises:
            InputError: not a snapshot, or one of another bundle or adapter; the session is closed
                or in use.
            MemoryError: there is not enough memory.
        """
        if not isinstance(snapshot, SessionSnapshot):
            raise InputError(f"restore needs a SessionSnapshot (got {type(snapshot).__name__}).")
        with self._in_use():
            self._become(snapshot.tokens, snapshot.states)

    def fork(self) -> "Session":
        """Return a new session that continues independently from the same tokens.

        Raises:
            InputError: the session is closed or in use.
            MemoryError: there is not enough memory.
        """
        other = Session(self._engine, adapter=self._adapter)
        with self._in_use():
            other._become(self._tokens, self._runner.slots.view())
        return other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tokens and states to a file, for `Decoder.load_session`.

        An existing file is replaced, or left as it is if writing fails.

        Raises:
            InputError: the session is closed or in use.
            StateFileError: the file cannot be written.
        """
        target = checked_path("save", path)
        with self._in_use():
            try:
                write_states(target, self._tokens, self._runner.slots.view())
            except (OSError, ValueError) as error:  # ValueError: a path without a name, such as "/"
                raise StateFileError(
                    f"{path}: the session cannot be saved there: {error}. Choose another file."
                ) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str], engine: Engine, *, adapter: int = 0) -> Self:
        """Read a saved session; see `Decoder.load_session`."""
        session = cls(engine, adapter=adapter)
        try:
            ids, states = read_states(checked_path("load_session", path), session._runner.slots)
        except OSError as error:
            raise StateFileError(
                f"load_session: the file cannot be read: {error}. Pass the path given to `save`."
            ) from error
        vocab_size = engine.manifest.vocab_size
        session._become(checked_ids(ids, vocab_size=vocab_size, what=f"{path}"), states)
        return session

    def close(self) -> None:
        """Release the memory. Closing twice is fine.

        Raises:
            InputError: the session is in use.
        """
        if self._is_closed:
            return
        with self._in_use():
            self._is_closed = True
            self._tokens.clear()
            del self._runner

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _become(self, tokens: Iterable[int], states: Snapshot) -> None:
        self._runner.restore(states)
        self._tokens = list(tokens)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        # an error instead of waiting: two threads would mix their tokens
        if not self._lock.acquire(blocking=False):
            raise InputError("Another thread is using this session. Give each thread its own.")
        try:
            if self._is_closed:
                raise InputError("The session is closed.")
            yield
        finally:
            self._lock.release()
