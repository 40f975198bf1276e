"""The publisher's code, loading a checkpoint the way its users do.

That is transformers, with PEFT for an adapter, and sentence-transformers for folders of its own.
None of Ortolan's readers is imported here: what reads the checkpoint must be other code than ours.
"""

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from functools import cache, cached_property, wraps
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

import torch
import transformers
from tokenizers import normalizers
from tokenizers.pre_tokenizers import ByteLevel
from torch import nn
from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoProcessor,
    AutoTokenizer,
    GenerationConfig,
)
from transformers.models.auto import processing_auto

from ortolan.export.witness.depth import (
    LIBRARIES,
    begins,
    first_of_each,
    float32_bytes,
    kinds_of,
    shortened,
    stacks,
)
from ortolan.export.witness.floats import (
    NAME,
    is_out_of_memory,
    load_floats,
    skeleton,
)
from ortolan.export.witness.floats import UnansweredError as UnansweredError

A = TypeVar("A")

AUTO = {
    "decoder": "AutoModelForCausalLM",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
    "encoder": "AutoModel",
}
"""Class that loads a checkpoint whose config names none, by kind of bundle."""

STACKS = {"encoder": 1, "encoder-decoder": 2}
"""Lists of layers that a shorter model has fewer of, by kind of bundle."""

SENTENCES = "sentence_transformers"
"""Package of sentence-transformers."""

NO_LIMIT = 1 << 24
"""Larger than any context: tokenizers without a limit have 1e30."""


def _or_unasked(what: str) -> Callable[[Callable[["Publisher"], A]], Callable[["Publisher"], A]]:
    """Turn whatever a library raises while it loads something into `UnansweredError`, once."""

    def decorate(load: Callable[["Publisher"], A]) -> Callable[["Publisher"], A]:
        @wraps(load)
        def checked(self: "Publisher") -> A:
            name = load.__name__
            if name in self.failures:
                raise UnansweredError(self.failures[name])
            try:
                return load(self)
            except Exception as error:
                self.failures[name] = _reason(what, error)
                raise UnansweredError(self.failures[name]) from error

        return checked

    return decorate


def _reason(what: str, error: Exception) -> str:
    if isinstance(error, UnansweredError):
        return str(error)
    if is_out_of_memory(error):
        return f"not enough memory for {what}"
    reason = shorten(str(error).partition(". ")[0], 100, placeholder=" ...")
    return f"{NAME} cannot load {what} ({reason or type(error).__name__})"


class Publisher:
    """What the publisher's code makes of a checkpoint.

    Attributes:
        path: folder of the checkpoint, or a GGUF file.
        kind: kind of the bundle, for a config that names no class.
        adapter: folder of a PEFT adapter to load on top.
        most: number of tokens at which texts are truncated if the publisher would do so later.
        layers: number of layers to load; None for all.
        unasked: why its model is not loaded; None if it is.
        rounding: difference of the model's numbers that rounded weights explain.
    """

    def __init__(
        self, path: Path, *, kind: str, adapter: Path | None = None, most: int | None = None
    ) -> None:
        self.path, self.kind, self.adapter, self.most = path, kind, adapter, most
        self.layers: int | None = None
        self.unasked: str | None = None
        self.rounding = 0.0
        self.failures: dict[str, str] = {}
        self.folder = path if path.is_dir() else path.parent
        self._file = {} if path.is_dir() else {"gguf_file": path.name}

    def import_libraries(self) -> None:
        """Import what takes seconds, before the time for questions begins."""
        if self.has_sentence_files:
            with suppress(Exception):  # a topic says so
                import_module(SENTENCES)
        if self._file:
            # config, tokenizer and model each read the file, and every module asks for its names
            with suppress(ImportError):
                gguf: Any = import_module("gguf")
                gguf.GGUFReader = cache(gguf.GGUFReader)
                gguf.get_tensor_name_map = cache(gguf.get_tensor_name_map)

    @property
    def name(self) -> str:
        """The library and its version; both libraries for a folder of sentence-transformers."""
        if not self.has_sentence_files or find_spec(SENTENCES) is None:
            return NAME
        return f"sentence-transformers {version('sentence-transformers')} ({NAME})"

    @cached_property
    @_or_unasked("config.json")
    def config(self) -> Any:
        """The config."""
        return AutoConfig.from_pretrained(self.folder, **self._file)

    def use_long_positions(self) -> None:
        """Rotate short texts as long ones, where frequencies depend on the length.

        Raises:
            UnansweredError: those of each length are others.
        """
        rotary: Any = getattr(self.config.get_text_config(), "rope_parameters", None) or {}
        for kind in [rotary] if "rope_type" in rotary else rotary.values():
            if kind.get("rope_type") == "longrope":
                kind["short_factor"] = kind["long_factor"]
            elif kind.get("rope_type") == "dynamic":
                raise UnansweredError("its rotary frequencies are those of its longest text")

    @property
    def _tokenizer_folder(self) -> Path:
        own = self.adapter
        return own if own is not None and (own / "tokenizer_config.json").is_file() else self.folder

    @cached_property
    @_or_unasked("the tokenizer")
    def tokenizer(self) -> Any:
        """The tokenizer; that of the adapter where it has one, as PEFT saves it."""
        folder = self._tokenizer_folder
        file = self._file if folder == self.folder else {}
        tokenizer = AutoTokenizer.from_pretrained(folder, **file)
        if file and isinstance(tokenizer.backend_tokenizer.pre_tokenizer, ByteLevel):
            # the default for the names of pre-tokenizers that it does not know
            raise UnansweredError(f"{NAME} may not know the words of this GGUF file")
        return tokenizer

    @cached_property
    def saved_tokenizer(self) -> Any:
        """The tokenizer as tokenizer.json has it, which is how transformers 4 reads it.

        `AutoTokenizer` of transformers 5 builds many tokenizers anew from class and vocabulary.
        What the file has beyond that is lost, such as the digits of SmolLM2.
        """
        folder, fast = self._tokenizer_folder, transformers.PreTrainedTokenizerFast
        with suppress(Exception):  # there is no such file, or only its class reads it
            saved = fast.from_pretrained(folder, tokenizer_file=str(folder / "tokenizer.json"))
            if isinstance(saved.backend_tokenizer.normalizer, normalizers.BertNormalizer):
                # both versions read do_lower_case and the like from tokenizer_config.json
                saved.backend_tokenizer.normalizer = self.tokenizer.backend_tokenizer.normalizer
            return saved
        return self.tokenizer

    @cached_property
    def as_saved(self) -> "Publisher":
        """The same with `saved_tokenizer`."""
        with suppress(UnansweredError):
            self.stack  # noqa: B018 - both share it
        other = copy(self)
        other.tokenizer = self.saved_tokenizer
        with suppress(UnansweredError):
            other.tokenizer.model_input_names = self.tokenizer.model_input_names
        return other

    @cached_property
    def limit(self) -> int | None:
        """Number of tokens at which texts are cut, or None; see `known.POSITIONS`."""
        if self.has_sentence_files:
            own: int | None = self.sentence_stack.max_seq_length
            return own
        return self._limit(self.tokenizer.model_max_length)

    def _limit(self, own: float | None) -> int | None:
        config = self.config.get_text_config()
        rows = getattr(config, "max_position_embeddings", None)
        limits = [own if own and own < NO_LIMIT else None, rows and rows - self.first_position]
        if getattr(config, "attention_type", None) == "block_sparse":  # see `known.SPARSE`
            limits.append((5 + 2 * config.num_random_blocks) * config.block_size)
        return min((int(limit) for limit in [*limits, self.most] if limit), default=None)

    @cached_property
    @_or_unasked("the model")
    def outline(self) -> nn.Module:
        """The model without its weights."""
        return skeleton(self._class, self.config)

    @cached_property
    def first_position(self) -> int:
        """Row of the first token in a table of positions: those up to the padding's have none."""
        parts = self.outline.named_modules()
        rows = [getattr(part, "padding_idx", None) for name, part in parts if "position" in name]
        return max((row + 1 for row in rows if row is not None), default=0)

    def truncation(self, reading: Any) -> dict[str, Any]:
        """Arguments of a tokenizer for a text or a pair, which is cut at the limit."""
        if self.limit is None:
            if reading.is_long:
                raise UnansweredError(f"{self.name} names no limit of tokens")
            return {}
        padding = "max_length" if reading.is_padded else False
        return {"truncation": True, "max_length": self.limit, "padding": padding}

    @cached_property
    @_or_unasked("the processor")
    def processor(self) -> Any:
        """The processor of texts with images or sounds."""
        processor = AutoProcessor.from_pretrained(self.folder)
        if hasattr(processor, "image_processor"):
            processor.image_processor = self.image_processor
        if getattr(processor, "patch_size", 0) is None:
            # an old LLaVA, about which transformers advises this
            vision = self.config.vision_config
            processor.patch_size = vision.patch_size
            processor.vision_feature_select_strategy = self.config.vision_feature_select_strategy
            processor.num_additional_image_tokens = int(vision.model_type == "clip_vision_model")
        return processor

    @cached_property
    @_or_unasked("the image processor")
    def image_processor(self) -> Any:
        """The image processor; that of Pillow, which resizes as models were trained."""
        return AutoImageProcessor.from_pretrained(self.folder, use_fast=False)

    @property
    def image_options(self) -> Mapping[str, Any]:
        """What the processor of the prompts of a decoder passes to that of images."""
        if self.kind != "decoder":
            return {}
        names: Any = getattr(processing_auto, "PROCESSOR_MAPPING_NAMES", {})
        name = names.get(self.config.model_type) or ""
        return getattr(getattr(transformers, name, None), "images_kwargs", {})

    @cached_property
    @_or_unasked("the feature extractor")
    def feature_extractor(self) -> Any:
        """The feature extractor of sounds."""
        return AutoFeatureExtractor.from_pretrained(self.folder)

    @cached_property
    @_or_unasked("generation_config.json")
    def generation(self) -> Any:
        """What `generate` does by default."""
        if (self.folder / "generation_config.json").is_file():
            return GenerationConfig.from_pretrained(self.folder)
        return GenerationConfig.from_model_config(self.config)

    @property
    def model(self) -> Any:
        """The model in float32, with its adapter."""
        self._check_whole()
        return self.stack

    def _check_whole(self) -> None:
        if self.layers is not None:
            raise UnansweredError("it was loaded without its last layers")

    @cached_property
    @_or_unasked("the model")
    def stack(self) -> Any:
        """The model, or its first layers where the rest does not fit into memory."""
        if self.unasked is not None:
            raise UnansweredError(self.unasked)
        if self.has_sentence_files:
            return self.sentence_stack[0].model
        model, self.rounding = load_floats(self._class, self.folder, self._config, **self._file)
        if self.adapter is not None:
            from peft import PeftModel

            # merged, the update of an embedding would also be that of a head tied to it
            model = PeftModel.from_pretrained(model, self.adapter).get_base_model()
        return model.eval()

    @cached_property
    def has_sentence_files(self) -> bool:
        """Whether the encoder is one of sentence-transformers."""
        if self.kind != "encoder" or self._file:
            return False
        return (self.folder / "modules.json").is_file() or self.is_cross_encoder

    @cached_property
    def is_cross_encoder(self) -> bool:
        """Whether sentence-transformers saved a model of pairs; each version has its own mark."""
        kind = self._read("config_sentence_transformers.json").get("model_type")
        values = self._read("config.json")
        own = values.get("sentence_transformers") or {}
        old = "sbert_ce_default_activation_function"
        return kind == "CrossEncoder" or "activation_fn" in own or old in values

    def _read(self, name: str) -> dict[str, Any]:
        file = self.folder / name
        values: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        return values

    @property
    def _config(self) -> Any:
        """The config of the layers that are loaded."""
        return self.config if self.layers is None else shortened(self.config, self.layers)

    @property
    def sentences(self) -> Any:
        """The `SentenceTransformer` or the `CrossEncoder` of the folder."""
        self._check_whole()
        return self.sentence_stack

    @cached_property
    @_or_unasked("the model")
    def sentence_stack(self) -> Any:
        """The same, or with the first layers where the rest does not fit into memory."""
        if find_spec(SENTENCES) is None:
            raise UnansweredError("sentence-transformers is not installed")
        if self.unasked is not None:
            raise UnansweredError(self.unasked)
        if self.adapter is not None:
            raise UnansweredError("sentence-transformers loads models without adapters")
        whole = self.config.to_dict()
        name = "CrossEncoder" if self.is_cross_encoder else "SentenceTransformer"
        model = getattr(import_module(SENTENCES), name)(
            str(self.folder),
            device="cpu",
            model_kwargs={"dtype": torch.float32, "attn_implementation": "eager"},
            config_kwargs={k: v for k, v in self._config.to_dict().items() if v != whole.get(k)},
            local_files_only=True,
        )
        model.max_seq_length = self._limit(model.max_seq_length)
        return model.eval()

    def pipeline(self, task: str, **options: Any) -> Any:
        """A pipeline of transformers, which truncates texts at the limit."""
        if self.limit is not None:
            self.tokenizer.model_max_length = self.limit
        make: Any = transformers.pipeline
        return make(task, model=self.model, tokenizer=self.tokenizer, device="cpu", **options)

    @property
    def _class(self) -> Any:
        """The class that the config names, or else the one that suits the kind."""
        for name in getattr(self.config, "architectures", None) or ():
            named = None if name is None else getattr(transformers, name, None)  # some name null
            # a bundle may have the head that an encoder-decoder's class leaves out
            is_headless = self.kind == "encoder-decoder" and not hasattr(named, "generate")
            if named is not None and not is_headless:
                return named
        return getattr(transformers, AUTO[self.kind])

    def fit(
        self, memory: int | None, weights: int | None, *, least_layers: int | None, other: int
    ) -> None:
        """Choose how many layers to load.

        Args:
            memory: bytes that are free; None if that is unknown.
            weights: number that there is time for; None for any number. A model without a shorter
                form is loaded even so.
            least_layers: layers of a shorter model, at least; None if all are needed.
            other: bytes that are needed besides if all layers are loaded.
        """
        whole = self.outline
        memory = sys.maxsize if memory is None else memory
        needed = float32_bytes(whole) + LIBRARIES
        if needed + other > memory:
            self.unasked = f"its model needs {needed / 1e9:.1f} GB (free: {memory / 1e9:.1f} GB)"
        elif weights is None or float32_bytes(whole) <= 4 * weights:
            return
        if least_layers is None:
            return
        with suppress(Exception):  # some configs have no shorter form
            lists = stacks(whole, skeleton(self._class, shortened(self.config, 1)))
            if self.kind != "decoder" and len(lists) != STACKS[self.kind]:
                return
            layers = max([least_layers, *(first_of_each(kinds_of(own)) for own, _ in lists)])
            short = skeleton(self._class, shortened(self.config, layers))
            if float32_bytes(short) + LIBRARIES <= memory and begins(whole, short):
                self.layers, self.unasked = layers, None


def quiet() -> None:
    """Silence progress bars and warnings of the libraries."""
    logging: Any = transformers.utils.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
