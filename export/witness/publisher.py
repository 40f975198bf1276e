"""The publisher's code: transformers and PEFT, loading a checkpoint the way their users do.

None of Ortolan's readers is imported here: what reads the checkpoint must be other code than ours.
"""

import errno
import os
from collections.abc import Callable
from functools import cached_property, wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoProcessor, AutoTokenizer, GenerationConfig

from ortolan.export.witness.depth import (
    LIBRARIES,
    begins,
    first_of_each,
    float32_bytes,
    kinds_of,
    shortened,
    stacks,
)

P = ParamSpec("P")
A = TypeVar("A")

NAME = f"transformers {version('transformers')}"
"""The library and its version."""

AUTO = {
    "decoder": "AutoModelForCausalLM",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
    "encoder": "AutoModel",
}
"""Class that loads a checkpoint whose config names none, by kind of bundle."""


class UnansweredError(Exception):
    """The publisher's code cannot answer. The message says why, in a few words."""


def _or_unasked(what: str) -> Callable[[Callable[P, A]], Callable[P, A]]:
    """Turn whatever a library raises while it loads something into `UnansweredError`."""

    def decorate(load: Callable[P, A]) -> Callable[P, A]:
        @wraps(load)
        def checked(*args: P.args, **kwargs: P.kwargs) -> A:
            try:
                return load(*args, **kwargs)
            except UnansweredError:
                raise
            except Exception as error:
                if is_out_of_memory(error):
                    raise UnansweredError(f"not enough memory for {what}") from None
                reason = " ".join(str(error).split())[:80] or type(error).__name__
                raise UnansweredError(f"{NAME} cannot load {what} ({reason})") from error

        return checked

    return decorate


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed; PyTorch and safetensors raise errors of their own for it."""
    return isinstance(error, MemoryError) or os.strerror(errno.ENOMEM) in str(error)


class Publisher:
    """What the publisher's code makes of a checkpoint.

    Attributes:
        path: folder of the checkpoint, or a GGUF file.
        kind: kind of the bundle, for a config that names no class.
        adapter: folder of a PEFT adapter to load on top.
        layers: number of layers to load; None for all.
        unasked: why its model is not loaded; None if it is.
    """

    def __init__(self, path: Path, *, kind: str, adapter: Path | None = None) -> None:
        self.path, self.kind, self.adapter = path, kind, adapter
        self.layers: int | None = None
        self.unasked: str | None = None
        self.folder = path if path.is_dir() else path.parent
        self._file = {} if path.is_dir() else {"gguf_file": path.name}

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
    @_or_unasked("the tokenizer")
    def saved_tokenizer(self) -> Any:
        """The tokenizer as tokenizer.json has it, which is how transformers 4 reads it.

        `AutoTokenizer` of transformers 5 builds many tokenizers anew from class and vocabulary.
        What the file has beyond that is lost, such as the digits of SmolLM2.
        """
        if self._file or not (self.folder / "tokenizer.json").is_file():
            return self.tokenizer
        fast: Any = transformers.PreTrainedTokenizerFast
        return fast.from_pretrained(self.folder)

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

    @property
    def model(self) -> Any:
        """The model in float32, with its adapter merged."""
        if self.layers is not None:
            raise UnansweredError(f"only {self.layers} of its layers fit into memory")
        return self.stack

    @cached_property
    @_or_unasked("the model")
    def stack(self) -> Any:
        """The model, or its first layers where the rest does not fit into memory."""
        if self.unasked is not None:
            raise UnansweredError(self.unasked)
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

    @_or_unasked("the model")
    def fit(self, memory: int, *, least_layers: int | None, other: int) -> None:
        """Choose how many layers to load.

        Args:
            memory: bytes that are free.
            least_layers: layers of a shorter model, at least; None if all are needed.
            other: bytes that are needed besides if all layers are loaded.
        """
        whole = self._skeleton(self.config)
        needed = float32_bytes(whole) + LIBRARIES
        if needed + other <= memory:
            return
        self.unasked = f"its model needs {needed / 1e9:.1f} GB (free: {memory / 1e9:.1f} GB)"
        if least_layers is None:
            return
        lists = stacks(whole, self._skeleton(shortened(self.config, 1)))
        layers = max([least_layers, *(first_of_each(kinds_of(part)) for part in lists)])
        short = self._skeleton(shortened(self.config, layers))
        if float32_bytes(short) + LIBRARIES <= memory and begins(whole, short):
            self.layers, self.unasked = layers, None

    def _skeleton(self, config: Any) -> nn.Module:
        """The model without its weights."""
        kind = self._class
        with torch.device("meta"):
            model: nn.Module = (
                kind.from_config(config) if hasattr(kind, "from_config") else kind(config)
            )
        return model

    def _load(self, kind: Any) -> Any:
        config = self.config if self.layers is None else shortened(self.config, self.layers)
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
            raise UnansweredError(f"{NAME} finds no weights for {missing[0]}")
        if mismatched := sorted(str(key) for key in report["mismatched_keys"]):
            raise UnansweredError(f"{NAME} finds weights of another shape for {mismatched[0]}")
        return model


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
