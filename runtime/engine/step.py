"""One call of a graph over buffers that are bound beforehand.

Knows the names that graphs give their inputs, and which state is read and written where. Does not
know lengths of conversations (`ortolan.runtime.engine.cache`), tokens or text.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.interface import LOGITS, SOURCE_LENGTHS, STEP_INPUTS
from ortolan.runtime.engine.cache import Buffer
from ortolan.runtime.engine.session import Encoded, Engine, share

__all__ = ["Step"]


class Step:
    """One call of a graph over buffers that are bound beforehand.

    Write the inputs in place, `run`, read `logits` in place.

    Attributes:
        ids: new tokens, int64 `(B, S)`.
        last_index: valid tokens of each row after the step minus one, int32 `(B,)`.
        total: tokens of the longest row after the step, int32 `()`.
        positions: indices into the new tokens to give logits for, int64 `(B, R)`.
        logits: float32 `(B, R, V)`.
    """

    __slots__ = (
        "_binding",
        "_engine",
        "_run",
        "_session",
        "ids",
        "last_index",
        "logits",
        "positions",
        "total",
    )

    def __init__(
        self,
        engine: Engine,
        *,
        batch: int,
        new_tokens: int,
        positions: int,
        logits: NDArray[np.float32] | None = None,
        rows_per_source: int = 1,
    ) -> None:
        self._engine = engine
        self._session = engine.session(new_tokens, rows_per_source=rows_per_source)
        self._binding: Any = None
        self._run: Any = None
        self.ids = np.zeros((batch, new_tokens), np.int64)
        self.last_index = np.zeros(batch, np.int32)
        self.total = np.zeros((), np.int32)
        self.positions = np.zeros((batch, positions), np.int64)
        shape = (batch, positions, engine.manifest.vocab_size)
        self.logits = np.empty(shape, np.float32) if logits is None else logits.reshape(shape)

    def bind(self, buffers: Sequence[Buffer]) -> None:
        """Bind the states, in the order of the manifest, and everything else.

        Each state's output is bound to the buffer of its input: the kernel writes new tokens
        where they belong, and copies nothing.
        """
        self._engine.check_process()
        binding = self._session.io_binding()
        feeds: tuple[NDArray[Any], ...] = (self.ids, self.last_index, self.total, self.positions)
        for name, array in zip(STEP_INPUTS, feeds, strict=True):
            binding.bind_ortvalue_input(name, share(array))
        binding.bind_ortvalue_output(LOGITS, share(self.logits))
        written = (state for state in self._engine.manifest.states if state.update != "source")
        for state, buffer in zip(written, buffers, strict=True):
            shared = share(buffer)
            binding.bind_ortvalue_input(state.input, shared)
            binding.bind_ortvalue_output(state.output, shared)
        self._binding = binding
        self._run = _call(self._session, binding)

    def bind_source(self, source: Encoded) -> None:
        """Bind what the decoder reads of its sources; each has `rows_per_source` rows, one by one.

        The step is bound already, and stays bound to everything else.
        """
        self._binding.bind_ortvalue_input(SOURCE_LENGTHS, share(source.lengths))
        read = (state for state in self._engine.manifest.states if state.update == "source")
        for state, value in zip(read, source.states, strict=True):
            self._binding.bind_ortvalue_input(state.input, share(value))

    def release(self) -> None:
        """Let go of the states, so that their memory is free once the cache lets go as well."""
        self._binding = self._run = None

    def run(self) -> None:
        """Compute. The caller has made sure that `total` is within the capacity.

        Raises:
            ForkedError: the process was forked after the engine was made.
        """
        if self._engine.is_stranded:
            self._engine.check_process()
        self._run()


def _call(session: Any, binding: Any) -> Callable[[], None]:
    """What runs a session over a binding, without a look for captured WebGPU graphs at each call.

    That takes 1 to 2 % of a step of a small model.
    """
    try:
        return partial(session._sess.run_with_iobinding, binding._iobinding, None)
    except AttributeError:  # these are names of onnxruntime 1.31, and promised by nobody
        return partial(session.run_with_iobinding, binding)
