"""A checkpoint that compares images with texts (CLIP, SigLIP): its encoder of texts, and its scale.

The checkpoint itself is read as the encoder of images. Both families read the config of the whole
model, and skip each other's tensors.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.lazy_tensor import LazyTensor, whole_of

Values = Mapping[str, object]

Scores = Literal["softmax", "sigmoid"]

SCALE, BIAS = "logit_scale", "logit_bias"

MAX_SCALE = 1e4
"""Far above the 100 at which CLIP's training clips it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A type of model of images and texts.

    Attributes:
        architecture: class with both encoders.
        texts: type of its encoder of texts.
        scores: function from the logits of an image and several texts to scores.
        has_bias: whether the logits are biased.
    """

    architecture: str
    texts: str
    scores: Scores
    has_bias: bool


KINDS: Mapping[str, Kind] = {
    "clip": Kind(
        architecture="CLIPModel", texts="clip_text_model", scores="softmax", has_bias=False
    ),
    "siglip": Kind(
        architecture="SiglipModel", texts="siglip_text_model", scores="sigmoid", has_bias=True
    ),
    "siglip2": Kind(
        architecture="Siglip2Model", texts="siglip2_text_model", scores="sigmoid", has_bias=True
    ),
}
"""By `model_type`. SigLIP 2 of a fixed resolution is published as `siglip`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """The logit of an image and a text, `scale * cosine + bias`, and its function.

    Attributes:
        scale: of the cosine.
        bias: 0 without one.
        scores: see `Kind`.
    """

    scale: float
    bias: float
    scores: Scores


def kind_of(values: Values) -> Kind | None:
    """The kind of a model of images and texts; None for other models."""
    model_type, names = values.get("model_type"), values.get("architectures")
    kind = KINDS.get(model_type) if isinstance(model_type, str) else None
    return kind if kind is not None and names == [kind.architecture] else None


def read_contrast(kind: Kind, tensors: Mapping[str, LazyTensor]) -> Contrast:
    """Read how a checkpoint compares images with texts."""
    scale = math.exp(min(_number(tensors, SCALE), math.log(2 * MAX_SCALE)))
    if not 0 < scale <= MAX_SCALE:
        raise CheckpointError(
            f"{SCALE}: the exponential must be at most {MAX_SCALE:g} (got {scale:g} or more). "
            "Check the checkpoint."
        )
    bias = _number(tensors, BIAS) if kind.has_bias else 0.0
    return Contrast(scale=scale, bias=bias, scores=kind.scores)


def _number(tensors: Mapping[str, LazyTensor], name: str) -> float:
    tensor = tensors.get(name)
    if tensor is None or tuple(tensor.shape) not in ((), (1,)):
        got = "none" if tensor is None else f"one of shape {tuple(tensor.shape)}"
        raise CheckpointError(
            f"{name}: expected a tensor with one number, got {got}. Without it, images cannot be "
            "compared with texts."
        )
    number = float(whole_of(tensor).float())
    if not math.isfinite(number):
        raise CheckpointError(f"{name} must be finite (got {number}). Check the checkpoint.")
    return number
