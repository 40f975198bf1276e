"""`Model`: the base of `Decoder`, `Seq2Seq` and `Encoder`."""

from typing import ClassVar, Self

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.inputs.tokenizer import open_tokenizer


class Model:
    """A loaded bundle. Threads may share it.

    Its memory is free when nothing refers to it any more, or after `with`, which calls `close`:

        with load("bundle/") as model:
            print(model.generate("def main(").text)

    Methods accept one input or a batch. A list or tuple is a batch, even an empty one, unless it is
    a list of integers, which is one sequence of token ids, like an array. A batch returns a list.

    Any method may also raise NumericError, for a result that is not finite, and ForkedError, in a
    process that was forked after loading.

    Attributes:
        bundle: the files it was loaded from.
        tokenizer: `None` if the bundle has none: its inputs are token ids, or images.
    """

    kind: ClassVar[str]
    """Bundle kind that this class loads."""

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        self.bundle = bundle
        self.tokenizer = open_tokenizer(bundle)
        self._engine = engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the memory of the model. Later calls raise InputError; close services first."""
        self._engine.close()

    def __repr__(self) -> str:
        """`<Decoder of "build/pythonic": fp32, context 512, on cpu>`."""
        return f"<{type(self).__name__} of {self.bundle.described}, on {self.device}>"

    @property
    def manifest(self) -> Manifest:
        """Description of the bundle."""
        return self.bundle.manifest

    @property
    def identity(self) -> str:
        """Fingerprint of the bundle; any other weight, graph or token changes it."""
        return self._engine.identity

    @property
    def device(self) -> str:
        """Device in use."""
        return self._engine.device

    @property
    def device_reason(self) -> str:
        """Why this device was chosen."""
        return self._engine.device_reason

    @property
    def threads(self) -> int:
        """Number of threads within one operator."""
        return self._engine.threads
