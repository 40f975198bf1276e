"""Fields of every model."""

from dataclasses import dataclass
from typing import Literal

FeatureAttention = Literal["causal", "both_ways"]
"""Which vectors of an image a vector attends to: those before it, or all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The fields of every model.

    Attributes:
        model_type: the family whose checkpoint format the model is saved in. It names a format and
            never changes the computation.
        bos_token_id: the token that starts a sequence, if there is one.
        eos_token_ids: the tokens that end a sequence.
        pad_token_id: the token that pads batches; never changes the computation.
        feature_token_id: the token whose embedding is replaced by a vector that an encoder of
            images computed; None for a language model of text alone.
        feature_attention: whether adjacent vectors attend to each other in both directions.
    """

    model_type: str
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    feature_token_id: int | None = None
    feature_attention: FeatureAttention = "causal"
