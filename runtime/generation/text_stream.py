"""Text streams: the text of one sequence, piece by piece while it is generated."""

from collections.abc import Iterator
from typing import Self

from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.generation.sampled_sequence import SampledSequence


class TextStream(Iterator[str]):
    """An iterator of pieces of text. Close it, or leave its `with` block, to stop early.

    A piece never ends inside a character or a stop text. Computation starts with the first piece.
    """

    def __init__(self, sequence: SampledSequence, generator: Generator) -> None:
        self._sequence = sequence
        self._generator: Generator | None = generator
        generator.submit(sequence)

    @property
    def completion(self) -> Completion:
        """The completion, once the stream has ended.

        Raises:
            InputError: the stream has not ended. Read it to the end, or close it.
        """
        return self._sequence.completion()

    @property
    def prompt_progress(self) -> tuple[int, int]:
        """Number of prompt tokens computed so far, and number of prompt tokens. Thread-safe."""
        return self._sequence.prompt_progress

    def close(self) -> None:
        """Stop generating, and release the memory."""
        self._generator = None
        self._sequence.finish("cancelled")

    def __next__(self) -> str:
        try:
            # the last round can release text that was held back as a possible stop text
            while not self._sequence.pending and self._generator is not None:
                if not self._generator.round():
                    self._generator = None
        except BaseException:
            self.close()
            raise
        if not self._sequence.pending:
            self._sequence.completion()  # raises if the sequence has failed
            raise StopIteration
        return self._sequence.take()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
