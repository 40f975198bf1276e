"""The encoder of images or sounds of a multimodal checkpoint, for its language model.

It is a checkpoint of its own: the values of its config are those of the whole model, which a family
reads, and its tensors are those of the tower and of the projection to the language model.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ortolan.modeling.checkpoint.text_tower import FEATURE_ATTENTION, FEATURE_TOKEN
from ortolan.modeling.config.base import FeatureAttention
from ortolan.modeling.families.reader import FEATURE_PARTS, ROTARY_SECTIONS

Values = Mapping[str, object]

PREFIX = "vision_model."
"""Prefix of an encoder's tensors, which some checkpoints leave out."""

_CLIP, _SIGLIP = "clip_vision_model", "siglip_vision_model"

_SIGLIP2 = "siglip2_vision_model"

_LAYER = re.compile(r"\.layers?\.(\d+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A type of multimodal model.

    Attributes:
        encoders: types of encoders that it may have.
        token: config key of the id that stands for a vector.
        default_token: that id where the config leaves it out.
        tower: prefix of the encoder's tensors.
        projections: names of the layers that give vectors for the language model, in order.
        matrix: name of a tensor that is the only such layer, without a bias.
        norm: name of the norm before them, if there is one.
        layer: the encoder's layer that the language model reads, by default; None if it always
            reads the last.
        implied: values of the encoder that configs leave out.
        config: config key of the encoder.
        prefix: of the encoder's tensors on its own.
        sections: pairs of channels that time, rows and columns rotate in the language model, where
            its config does not say; None if a token has one position.
        attention: which vectors of an image a vector attends to in the language model.
    """

    encoders: tuple[str, ...]
    token: str
    default_token: int
    tower: str
    projections: tuple[str, ...] = ()
    matrix: str | None = None
    norm: str | None = None
    layer: int | None = None
    implied: Values = field(default_factory=dict)
    config: str = "vision_config"
    prefix: str = PREFIX
    sections: tuple[int, ...] | None = None
    attention: FeatureAttention = "causal"


_CONNECTED: dict[str, Any] = {
    "token": "image_token_id",
    "default_token": 128_257,
    "tower": PREFIX,
    "projections": ("connector.modality_projection.proj",),
    "encoders": ("idefics3", "idefics3_vision", "smolvlm", "smolvlm_vision"),
    "implied": {
        "hidden_size": 1152,
        "num_attention_heads": 16,
        "num_hidden_layers": 12,
        "patch_size": 32,
    },
}

_QWEN_VISION: dict[str, Any] = {
    "token": "image_token_id",
    "tower": "visual.",
    "projections": (),
    "prefix": "visual.",
}

KINDS: Mapping[str, Kind] = {
    "gemma3": Kind(
        encoders=(_SIGLIP,),
        token="image_token_index",
        default_token=262_144,
        tower="vision_tower.",
        matrix="multi_modal_projector.mm_input_projection_weight",
        norm="multi_modal_projector.mm_soft_emb_norm",
        implied={
            "model_type": _SIGLIP,
            "hidden_size": 768,
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "image_size": 224,
        },
        attention="both_ways",
    ),
    "llava": Kind(
        encoders=(_CLIP, _SIGLIP),
        token="image_token_index",
        default_token=32_000,
        tower="vision_tower.",
        projections=("multi_modal_projector.linear_1", "multi_modal_projector.linear_2"),
        layer=-2,
    ),
    "internvl": Kind(
        encoders=("internvl_vision",),
        token="image_token_id",
        default_token=151_667,
        tower="vision_tower.",
        projections=("multi_modal_projector.linear_1", "multi_modal_projector.linear_2"),
        norm="multi_modal_projector.layer_norm",
        layer=-1,
        implied={
            "model_type": "internvl_vision",
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "image_size": 448,
        },
    ),
    "idefics3": Kind(**_CONNECTED),
    "smolvlm": Kind(**_CONNECTED),
    "qwen3_5": Kind(
        **_QWEN_VISION,
        encoders=("qwen3_5", "qwen3_5_vision"),
        default_token=248_056,
        implied={"model_type": "qwen3_5_vision"},
        sections=(11, 11, 10),
    ),
    "qwen3_vl": Kind(
        **_QWEN_VISION,
        encoders=("qwen3_vl", "qwen3_vl_vision"),
        default_token=151_655,
        implied={"model_type": "qwen3_vl_vision", "deepstack_visual_indexes": [8, 16, 24]},
        sections=(24, 20, 20),
    ),
    "lfm2_vl": Kind(
        encoders=(_SIGLIP2,),
        token="image_token_id",
        default_token=396,
        tower="vision_tower.",
        projections=("multi_modal_projector.linear_1", "multi_modal_projector.linear_2"),
        norm="multi_modal_projector.layer_norm",
        implied={
            "model_type": _SIGLIP2,
            "hidden_size": 768,
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
        },
    ),
    "qwen3_asr": Kind(
        encoders=("qwen3_asr_encoder",),
        token="audio_token_id",
        default_token=151_676,
        tower="audio_tower.",
        projections=("multi_modal_projector.linear_1", "multi_modal_projector.linear_2"),
        config="audio_config",
        prefix="audio_tower.",
    ),
}
"""By `model_type`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaTower:
    """An encoder of images or sounds.

    Attributes:
        values: values of its config.
        text: values that are added to the config of the language model.
        rename: from a tensor's name in the whole model to its name here; None if it is not of here.
    """

    values: dict[str, object]
    text: dict[str, object]
    rename: Callable[[str], str | None]


def media_tower(values: Values) -> MediaTower | None:
    """The encoder of images or sounds of a model; None where it has none that Ortolan computes."""
    model_type, text = values.get("model_type"), values.get("text_config")
    kind = KINDS.get(model_type) if isinstance(model_type, str) else None
    own = None if kind is None else values.get(kind.config)
    if kind is None or not isinstance(own, dict) or not isinstance(text, dict):
        return None
    own = {**kind.implied, **own}
    token = values.get(kind.token, values.get("image_token_id", kind.default_token))
    if own.get("model_type") not in kind.encoders or not isinstance(token, int):
        return None
    most = None if kind.layer is None else used_layers(values, own, kind.layer)
    if kind.layer is not None and most is None:
        return None

    def rename(name: str) -> str | None:
        name = name.removeprefix("model.")
        if name == kind.matrix:
            return "projections.0.weight"
        layer, _, parameter = name.rpartition(".")
        if layer in kind.projections:
            return f"projections.{kind.projections.index(layer)}.{parameter}"
        if layer == kind.norm:
            return f"projection_norm.{parameter}"
        if not name.startswith(kind.tower):
            return None
        rest = name.removeprefix(kind.tower)
        number = _LAYER.search(rest)
        if most is not None and number and int(number[1]) >= most:
            return None  # the language model reads what an earlier layer gives
        return f"{kind.prefix}{rest.removeprefix(kind.prefix)}"

    added: dict[str, object] = {FEATURE_TOKEN: token}
    if kind.attention != "causal":
        added[FEATURE_ATTENTION] = kind.attention
    if kind.sections is not None:
        rope = text.get("rope_scaling") or text.get("rope_parameters")
        sections = rope.get("mrope_section") if isinstance(rope, dict) else None
        early = own.get("deepstack_visual_indexes")
        added[ROTARY_SECTIONS] = [*kind.sections] if sections is None else sections
        added[FEATURE_PARTS] = len(early) if isinstance(early, list) else 0
    return MediaTower(values={**values, kind.config: own}, text=added, rename=rename)


def used_layers(values: Values, own: Values, layer: int) -> int | None:
    """Layers of the encoder whose output the language model reads; None if it reads several."""
    layers, read = own.get("num_hidden_layers"), values.get("vision_feature_layer", layer)
    if type(layers) is not int or type(read) is not int:
        return None
    used = read if read >= 0 else layers + 1 + read
    return used if 1 <= used <= layers else None
