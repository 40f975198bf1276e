"""The publisher's code: transformers and PEFT, loading a checkpoint the way their users do.

Nothing of Ortolan is imported here: what reads the checkpoint must be other code than ours.
"""

from collections.abc import Callable
from functools import cached_property, wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from transformers import AutoConfig, AutoProcessor, AutoTokenizer, GenerationConfig

A = TypeVar("A")

AUTO = {
    "decoder": "AutoModelForCausalLM",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
    "encoder": "AutoModel",
}
"""Class that loads a checkpoint whose config names none, by kind of bundle."""


class UnansweredError(Exception):
    """The publisher's code cannot answer. The message says why, in a few words."""


def _or_unasked(what: str) -> Callable[[Callable[["Publisher"], A]], Callable[["Publisher"], A]]:
    """Turn whatever a library raises while it loads something into `UnansweredError`."""

    def decorate(load: Callable[["Publisher"], A]) -> Callable[["Publisher"], A]:
        @wraps(load)
        def checked(self: "Publisher") -> A:
            try:
                return load(self)
            except UnansweredError:
                raise
            except MemoryError:
                raise UnansweredError(f"not enough memory for {what}") from None
            except Exception as error:
                reason = " ".join(str(error).split())[:80] or type(error).__name__
                raise UnansweredError(f"{self.name} cannot load {what} ({reason})") from error

        return checked

    return decorate


class Publisher:
    """What the publisher's code makes of a checkpoint.

    Attributes:
        path: folder of the checkpoint, or a GGUF file.
        kind: kind of the bundle, for a config that names no class.
        adapter: folder of a PEFT adapter to load on top.
        layers: number of layers to load; None for all.
    """

    def __init__(
        self, path: Path, *, kind: str, adapter: Path | None = None, layers: int | None = None
    ) -> None:
        self.path, self.kind, self.adapter, self.layers = path, kind, adapter, layers
        self.folder = path if path.is_dir() else path.parent
        self._file = {} if path.is_dir() else {"gguf_file": path.name}

    @property
    def name(self) -> str:
        """The library and its version."""
        return f"transformers {version('transformers')}"

    @cached_property
    @_or_unasked("config.json")
    def config(self) -> Any:
        """The config."""
        return AutoConfig.from_pretrained(self.folder, **self._file)

    @cached_property
    @_or_unasked("the tokenizer")
    def tokenizer(self) -> Any:
        """The tokenizer; that of the adapter where it has one, as PEFT saves it."""
        own = self.adapter
        has_own = own is not None and (own / "tokenizer_config.json").is_file()
        folder = own if has_own else self.folder
        return AutoTokenizer.from_pretrained(folder, **({} if has_own else self._file))

    @cached_property
    @_or_unasked("the processor")
    def processor(self) -> Any:
        """The processor of images or sounds."""
        return AutoProcessor.from_pretrained(self.folder)

    @cached_property
    @_or_unasked("generation_config.json")
    def generation(self) -> Any:
        """What `generate` does by default."""
        if (self.folder / "generation_config.json").is_file():
            return GenerationConfig.from_pretrained(self.folder)
        return GenerationConfig.from_model_config(self.config)

    @cached_property
    @_or_unasked("the model")
    def model(self) -> Any:
        """The model in float32, with its adapter merged."""
        model = self._load(self._class)
        if self.adapter is not None:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, self.adapter).merge_and_unload()
        return model.eval()

    @property
    def _class(self) -> Any:
        """The class that the config names, or else the one that suits the kind."""
        for name in getattr(self.config, "architectures", None) or ():
            if (named := getattr(transformers, name, None)) is not None:
                return named
        return getattr(transformers, AUTO[self.kind])

    def _load(self, kind: Any) -> Any:
        config = self.config
        if self.layers is not None:
            shorten(config, self.layers)
        if (quantization := getattr(config, "quantization_config", None)) is not None:
            _dequantize(quantization)
        options: dict[str, Any] = {"config": config, "dtype": torch.float32, **self._file}
        try:
            model, report = kind.from_pretrained(
                self.folder, attn_implementation="eager", output_loading_info=True, **options
            )
        except ValueError as error:
            if "attention" not in str(error):
                raise
            model, report = kind.from_pretrained(self.folder, output_loading_info=True, **options)
        if missing := sorted(report["missing_keys"]):
            raise UnansweredError(f"{self.name} finds no weights for {missing[0]}")
        if mismatched := sorted(str(key) for key in report["mismatched_keys"]):
            raise UnansweredError(f"{self.name} finds weights of another shape for {mismatched[0]}")
        return model


def shorten(config: Any, layers: int) -> None:
    """Keep the first layers of the text model of a config."""
    text = config.get_text_config()
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:layers]


def _dequantize(quantization: Any) -> None:
    """Let a checkpoint of 8-bit floats load without a GPU."""
    if isinstance(quantization, dict):
        if quantization.get("quant_method") in ("fp8", "mxfp4"):
            quantization["dequantize"] = True
    elif hasattr(quantization, "dequantize"):
        quantization.dequantize = True


def quiet() -> None:
    """Silence progress bars and warnings of the libraries."""
    logging: Any = transformers.utils.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
