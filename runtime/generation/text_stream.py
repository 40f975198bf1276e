"""A text that is handed out piece by piece while it is generated."""

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.generation.sampled_sequence import SampledSequence

__all__ = ["TextStream"]


class TextStream(Iterator[str]):
    """Pieces of a text as they are generated. Stops early by `close`, or at the end of a `with`.

    A piece never holds half a character nor a part of a stop text. Nothing is computed before the
    first piece is read.
    """

    def __init__(self, text: SampledSequence, generator: Generator) -> None:
        self._text = text
        self._generator: Generator | None = generator
        generator.submit(text)

    @property
    def completion(self) -> Completion:
        """Everything that was generated, as soon as the stream has ended.

        Raises:
            InputError: it has not; read it to the end or close it.
        """
        return self._text.completion()

    @property
    def prompt_progress(self) -> tuple[int, int]:
        """How many tokens of the prompt are done, and how many there are. Any thread may ask."""
        return self._text.prompt_progress

    def close(self) -> None:
        """Stop generating and give the memory back. Closing twice is no error."""
        self._generator = None
        self._text.finish("cancelled")

    def __next__(self) -> str:
        try:
            # the end lets out what was held back in case it became a stop text
            while not self._text.pending and self._generator is not None:
                if not self._generator.round():
                    self._generator = None
        except BaseException:
            self.close()
            raise
        if not self._text.pending:
            self._text.completion()  # raises where the text has failed
            raise StopIteration
        return self._text.take()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
