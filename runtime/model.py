"""What every loaded bundle has, whatever its kind."""

from typing import ClassVar

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.manifest import Manifest, wrong_kind
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.inputs.tokenizer import open_tokenizer

__all__ = ["Model"]


class Model:
    """A loaded bundle: a `Decoder`, a `Seq2Seq` or an `Encoder`. Several threads may use one.

    What a model takes is one input or a list of them. A list or tuple is a batch, even an empty
    one, except for a list of integers, which is one sequence of token ids; so is an array. A batch
    gives a list of as many results.

    Attributes:
        bundle: what it was loaded from.
        tokenizer: `None` when the bundle takes only ids, or images.
    """

    kind: ClassVar[str]
    """Of the bundles that this class is for."""

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        check_kind(bundle.manifest, type(self))
        self.bundle = bundle
        self.tokenizer = open_tokenizer(bundle)
        self._engine = engine

    @property
    def manifest(self) -> Manifest:
        """What the bundle holds."""
        return self.bundle.manifest

    @property
    def device(self) -> str:
        """The device in use."""
        return self._engine.device

    @property
    def device_reason(self) -> str:
        """Why it is this device."""
        return self._engine.device_reason

    @property
    def threads(self) -> int:
        """Threads within one operator."""
        return self._engine.threads


def check_kind(manifest: Manifest, model: type[Model]) -> None:
    """Refuse a bundle of another kind.

    Raises:
        BundleKindError: `model` is not for bundles of this kind.
    """
    if manifest.kind != model.kind:
        article = "a" if model.kind == "decoder" else "an"
        raise wrong_kind(
            manifest, what=f"load as {model.__name__}", expected=f"{article} {model.kind}"
        )
