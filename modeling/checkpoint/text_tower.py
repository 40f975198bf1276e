"""The language model of a checkpoint that takes more than texts.

Its config is `text_config`, its tensors have a prefix of their own; the towers for images, sounds
and videos stay behind. A model that computes with texts alone what the whole one computes with
texts alone is all that is in the table: positions of images (`mrope`) are plain ones for texts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from ortolan.modeling.checkpoint.packed.unpacked import FileTensors
from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.weights import Coded, CodedRows, CodeFormat

Values = Mapping[str, object]

PREFIXES = (
    "model.language_model.",
    "language_model.model.",
    "model.text_model.",
    "text_model.model.",
)
"""Of the tensors of a language model, which has `model.` by itself."""

HEAD, WRAPPED_HEAD = "lm_head.", "language_model.lm_head."

TOWERS = (
    "vision_tower",
    "vision_model",
    "vision_encoder",
    "vision_projection",
    "vision_proj",
    "visual",
    "multi_modal_projector",
    "mlp1",
    "connector",
    "image_newline",
)
"""First parts of the names of tensors that texts do not pass, with or without `model.`."""

SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")

OF_IMAGES = ("mrope_section", "mrope_interleaved")
"""Keys of rotary positions that only images and videos have."""

OF_TOWERS = ("vision_config", "audio_config", "text_config", "architectures")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A type of model with towers.

    Attributes:
        text_types: of its language model, and the type of ours that computes the same.
        default: the type where `text_config` does not say.
        implied: values of the language model that configs leave out.
    """

    text_types: Mapping[str, str]
    default: str
    implied: Values = field(default_factory=dict)


_GEMMA3 = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "query_pre_attn_scalar": 256,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "sliding_window_pattern": 6,
}

_LLAMA = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}

_PLAIN = {name: name for name in ("llama", "mistral", "qwen2", "qwen3", "phi3")}

KINDS: Mapping[str, Kind] = {
    "gemma3": Kind(
        text_types={"gemma3_text": "gemma3_text"}, default="gemma3_text", implied=_GEMMA3
    ),
    "mistral3": Kind(
        text_types={"mistral": "mistral", "ministral3": "ministral3"}, default="mistral"
    ),
    "llava": Kind(text_types=_PLAIN, default="llama", implied=_LLAMA),
    "llava_next": Kind(text_types=_PLAIN, default="llama", implied=_LLAMA),
    "llava_onevision": Kind(text_types=_PLAIN, default="qwen2"),
    "internvl": Kind(text_types=_PLAIN, default="qwen2"),
    "idefics3": Kind(text_types=_PLAIN, default="llama"),
    "smolvlm": Kind(text_types=_PLAIN, default="llama"),
    "qwen2_vl": Kind(text_types={"qwen2_vl_text": "qwen2"}, default="qwen2_vl_text"),
    "qwen2_5_vl": Kind(text_types={"qwen2_5_vl_text": "qwen2"}, default="qwen2_5_vl_text"),
    "qwen3_5": Kind(text_types={"qwen3_5_text": "qwen3_5_text"}, default="qwen3_5_text"),
    "qwen3_vl": Kind(text_types={"qwen3_vl_text": "qwen3"}, default="qwen3_vl_text"),
}
"""By `model_type`. Defaults are those of the config classes of transformers."""


def text_values(values: Values) -> dict[str, object] | None:
    """The config of the language model alone; None for a model without towers.

    Raises:
        CheckpointError: a language model of a type that is not known to be the same by itself.
    """
    model_type = values.get("model_type")
    kind = KINDS.get(model_type) if isinstance(model_type, str) else None
    if kind is None:
        return None
    nested = values.get("text_config")
    # Old configs have the language model's values beside those of the towers.
    own = nested if isinstance(nested, dict) else _without(values, OF_TOWERS)
    text_type = own.get("model_type", kind.default) if own is nested else kind.default
    if not isinstance(text_type, str) or text_type not in kind.text_types:
        raise CheckpointError(
            f"text_config: expected model_type to be one of {', '.join(kind.text_types)}, got "
            f"{text_type!r:.40}. Export a checkpoint of the language model alone."
        )
    found = {**(kind.implied if own is nested else {}), **own}
    found["model_type"] = kind.text_types[text_type]
    found |= {key: values[key] for key in SPECIAL_IDS if values.get(key) is not None}
    for key in ("rope_scaling", "rope_parameters"):
        rope = found.get(key)
        if isinstance(rope, dict):
            found[key] = _of_text(rope)
    return {key: value for key, value in found.items() if not _is_about_images(key)}


def _of_text(rope: Values) -> dict[str, object] | None:
    """Rotary positions without what is about images; None if that is all that there is."""
    kept = {key: value for key, value in rope.items() if key not in OF_IMAGES}
    for key in ("type", "rope_type"):
        if kept.get(key) == "mrope":
            kept[key] = "default"
    return None if set(kept) <= {"type", "rope_type"} and "default" in kept.values() else kept


def _is_about_images(key: str) -> bool:
    """Whether a key is an id that stands for an image or a video in a text."""
    return key.startswith(("image_", "video_", "vision_", "boi_", "eoi_"))


def _without(values: Values, keys: Iterable[str]) -> dict[str, object]:
    return {key: value for key, value in values.items() if key not in keys}


class TextTensors:
    """The tensors of the language model under the names that it has by itself."""

    def __init__(self, whole: FileTensors) -> None:
        """Find them among all tensors of a checkpoint."""
        self._whole = whole
        names = {name: text_name(name) for name in whole.shapes()}
        self._names = {text: name for name, text in names.items() if text is not None}
        dropped = [_tower(name) for name, text in names.items() if text is None]
        self.left_out = tuple(sorted({tower for tower in dropped if tower is not None}))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        shapes = self._whole.shapes()
        return {text: shapes[name] for text, name in self._names.items()}

    def files(self) -> list[Path]:
        """The files, sorted by name."""
        return self._whole.files()

    def read(self, name: str, start: int, stop: int, *, axis: int = 0) -> Tensor:
        """The slice `[start:stop]` along `axis` of one tensor."""
        return self._whole.read(self._names[name], start, stop, axis=axis)

    def code_format(self, name: str) -> CodeFormat | None:
        """The format of a tensor's codes; None where it has none that kernels take."""
        whole = self._whole
        return whole.code_format(self._names[name]) if isinstance(whole, Coded) else None

    def codes(self, name: str, start: int, stop: int) -> CodedRows:
        """The codes of rows `[start:stop]` of a tensor that has some."""
        if not isinstance(self._whole, Coded):
            raise TypeError(f"{name}: its checkpoint stores no codes")
        return self._whole.codes(self._names[name], start, stop)


def text_name(name: str) -> str | None:
    """The name that a tensor has in the language model by itself; None in another tower."""
    if name.startswith(WRAPPED_HEAD):
        return f"{HEAD}{name.removeprefix(WRAPPED_HEAD)}"
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return f"model.{name.removeprefix(prefix)}"
    return name if _tower(name) is None else None


def _tower(name: str) -> str | None:
    """The tower that a tensor is of; None for the language model."""
    first = name.removeprefix("model.").partition(".")[0]
    return first if first in TOWERS else None
