"""The language model of a multimodal checkpoint.

Its config is `text_config`, and its tensors have their own prefix; towers for images, audio and
video are left out. The table lists only models whose language model computes the same for text
alone. For text, multimodal rotary positions (`mrope`) are ordinary ones.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ortolan.modeling.checkpoint.file_tensors import FileTensors
from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.families.reader import FEATURE_PARTS, ROTARY_SECTIONS

Values = Mapping[str, object]

PREFIXES = (
    "model.language_model.",
    "language_model.model.",
    "model.text_model.",
    "text_model.model.",
)
"""Prefixes of the language model's tensors; on its own it has `model.`."""

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
    "audio_tower",
)
"""First parts of the names of tensors that text does not use, with or without `model.`."""

FEATURE_TOKEN = "feature_token_id"
"""Key that is added to the config of a language model that reads vectors of images."""

FEATURE_ATTENTION = "feature_attention"
"""Key that is added if these vectors attend to each other in both directions."""

OF_MEDIA = (FEATURE_TOKEN, FEATURE_ATTENTION, ROTARY_SECTIONS, FEATURE_PARTS)
"""All keys that are added to the config of a language model that reads vectors."""

SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")

OF_IMAGES = ("mrope_section", "mrope_interleaved")
"""Keys of rotary positions that matter only for images and videos."""

OF_CONNECTORS = ("perceiver_config", "pixel_shuffle_factor")
"""Keys of the layers between an encoder and the language model, in old configs of SmolVLM."""

OF_TOWERS = ("vision_config", "audio_config", "text_config", "architectures")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A type of multimodal model.

    Attributes:
        text_types: types of its language model, and the equivalent types of ours.
        default: type if `text_config` does not say.
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

_QWEN3_ASR = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 65_536,
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
    "lfm2_vl": Kind(text_types={"lfm2": "lfm2"}, default="lfm2"),
    "qwen2_vl": Kind(text_types={"qwen2_vl_text": "qwen2"}, default="qwen2_vl_text"),
    "qwen2_5_vl": Kind(text_types={"qwen2_5_vl_text": "qwen2"}, default="qwen2_5_vl_text"),
    "qwen3_5": Kind(text_types={"qwen3_5_text": "qwen3_5_text"}, default="qwen3_5_text"),
    "qwen3_asr": Kind(text_types={"qwen3": "qwen3"}, default="qwen3", implied=_QWEN3_ASR),
    "qwen3_vl": Kind(text_types={"qwen3_vl_text": "qwen3"}, default="qwen3_vl_text"),
}
"""By `model_type`. Defaults are those of transformers' config classes."""


def text_values(values: Values) -> dict[str, object] | None:
    """Config of the language model; None for a model without towers."""
    model_type = values.get("model_type")
    kind = KINDS.get(model_type) if isinstance(model_type, str) else None
    if kind is None:
        return None
    nested = values.get("text_config")
    # Older configs mix the language model's values with those of the towers.
    own = nested if isinstance(nested, dict) else _without(values, OF_TOWERS)
    text_type = own.get("model_type", kind.default) if own is nested else kind.default
    if not isinstance(text_type, str) or text_type not in kind.text_types:
        raise CheckpointError(
            f"text_config: model_type must be one of {', '.join(kind.text_types)} (got "
            f"{text_type!r:.40}). Export a checkpoint of the language model alone."
        )
    text = {**(kind.implied if own is nested else {}), **own}
    text["model_type"] = kind.text_types[text_type]
    text |= {key: values[key] for key in SPECIAL_IDS if values.get(key) is not None}
    for key in ("rope_scaling", "rope_parameters"):
        rope = text.get(key)
        if isinstance(rope, dict):
            text[key] = _of_text(rope)
    return {key: value for key, value in text.items() if not _is_about_images(key)}


def _of_text(rope: Values) -> dict[str, object] | None:
    """Rotary positions without keys about images; None if nothing else is left."""
    rest = {key: value for key, value in rope.items() if key not in OF_IMAGES}
    for key in ("type", "rope_type"):
        if rest.get(key) == "mrope":
            rest[key] = "default"
    return None if set(rest) <= {"type", "rope_type"} and "default" in rest.values() else rest


def _is_about_images(key: str) -> bool:
    """Whether a key is the id of an image or video token, or says how vectors are joined."""
    return key in OF_CONNECTORS or key.startswith(("image_", "video_", "vision_", "boi_", "eoi_"))


def _without(values: Values, keys: Iterable[str]) -> dict[str, object]:
    return {key: value for key, value in values.items() if key not in keys}


def text_tensors(whole: FileTensors) -> FileTensors:
    """Tensors of the language model, under the names it has on its own."""
    towers = {_tower(name) for name in whole.tensors if text_name(name) is None}
    left_out = tuple(sorted(tower for tower in towers if tower))
    return replace(whole.of_part(text_name), left_out=left_out)


def text_name(name: str) -> str | None:
    """Name of a tensor in the language model on its own; None for another tower."""
    if name.startswith(WRAPPED_HEAD):
        return f"{HEAD}{name.removeprefix(WRAPPED_HEAD)}"
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return f"model.{name.removeprefix(prefix)}"
    return name if _tower(name) is None else None


def _tower(name: str) -> str | None:
    """Tower of a tensor; None for the language model."""
    first = name.removeprefix("model.").partition(".")[0]
    return first if first in TOWERS else None
