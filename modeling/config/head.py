"""The heads of a model as data, with norms and activations."""

from dataclasses import dataclass
from typing import Literal

from ortolan.modeling.config.base import Config, Count, Size, Some
from ortolan.modeling.errors import ConfigError

Activation = Literal["relu", "relu2", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh"]
"""`gelu` is exact, `gelu_tanh` its approximation, `quick_gelu` the coarser `x sigmoid(1.702 x)`
(Hendrycks and Gimpel 2016); `relu2` is the square of `relu` (So et al. 2021).
"""

ScoreFunction = Literal["softmax", "sigmoid", "none"]
"""From the logits of labels to their scores: probabilities that add up to 1 (the logistic function
if there is one label), an independent probability for each label, or the logits themselves."""

Pooling = Literal["first", "last", "mean", "max", "mean_sqrt", "weighted_mean", "first_and_mean"]
"""One vector for the tokens without padding: the first, the last, their mean, the largest value of
each channel, their sum over the root of their number, a mean in which token `i` counts `i` times
(Muennighoff 2022, "SGPT"), or the first joined with the mean of the patches (Oquab et al. 2023,
"DINOv2"), which is twice as wide."""


def pooled_width(pooling: Pooling, width: int) -> int:
    """Channels of a pooled vector."""
    return 2 * width if pooling == "first_and_mean" else width


@dataclass(frozen=True, slots=True, kw_only=True)
class NormConfig(Config):
    """Layer norm (Ba et al. 2016) or RMS norm (Zhang and Sennrich 2019)."""

    kind: Literal["layer", "rms"]
    eps: float  # added to the variance, or to the mean square
    scale: bool = True  # multiply the output by a trained weight
    bias: bool = True  # of a layer norm; an RMS norm has none

    def _check(self) -> None:
        if self.kind == "layer" and self.bias and not self.scale:
            raise ConfigError("norm: a norm without a weight has no bias. Set bias to False.")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLayer(Config):
    """A layer `norm(act(dense(x)))` before the last matrix of a head."""

    activation: Activation
    norm: NormConfig | None = None
    width: Size | None = None  # output channels; None for those of the input
    bias: bool = True  # of the matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModelHead:
    """Logits of the vocabulary for every token, as in masked language modelling."""

    tied: bool  # the last matrix is the embedding's table
    bias: bool  # of the logits
    layer: HeadLayer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierHead(Config):
    """Logits of `labels` for the whole sequence or image, or for every token.

    The module itself returns logits. A head for question answering has one row of them per token,
    for the start and the end of the answer, and no function for them. A `distilled` one averages
    them with those that another matrix computes of the second token, a distillation token.
    """

    labels: Some[str]
    pooling: Pooling | None  # None for one row of logits per token
    scores: ScoreFunction = "softmax"
    layer: HeadLayer | None = None
    distilled: bool = False

    @property
    def reads_pairs(self) -> bool:
        """Whether two texts may be one input, as a question and its context are."""
        return self.pooling is not None or self.scores == "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection(Config):
    """`act(dense(x))` of a vector, with `width` output channels."""

    width: Size
    bias: bool = True
    activation: Activation | None = "tanh"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPooling(Config):
    """One vector by attention (Zhai et al. 2022, "Scaling Vision Transformers").

    A trained query attends to all vectors, with biases, and a residual mlp follows:
    `x + mlp(norm(x))`.
    """

    num_heads: Size
    intermediate_size: Size
    activation: Activation
    norm: NormConfig


EndToken = int | Literal["highest"]
"""Id of the token at which a text ends, or the highest id in it (Radford et al. 2021, "CLIP")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingHead(Config):
    """One vector for the whole sequence (Reimers and Gurevych 2019)."""

    pooling: Some[Pooling] | AttentionPooling  # concatenated, if there are several
    projections: tuple[Projection, ...] = ()  # of the pooled vector, in order
    normalised: bool = True  # the embedding has length 1
    end: EndToken | None = None  # tokens after the first of these are not pooled

    def pooled_width(self, hidden_size: int) -> int:
        """Channels of the pooled vector, for a stream of `hidden_size`."""
        if isinstance(self.pooling, AttentionPooling):
            return hidden_size
        return sum(pooled_width(pooling, hidden_size) for pooling in self.pooling)

    def width(self, hidden_size: int) -> int:
        """Channels of the embedding, for a stream of `hidden_size`."""
        return self.projections[-1].width if self.projections else self.pooled_width(hidden_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureHead(Config):
    """Vectors that a decoder reads in place of embeddings of tokens (Liu et al. 2023, "LLaVA").

    Before the projections, the vectors of squares of patches are joined (Laurençon et al. 2024,
    "Idefics3") or averaged (Gemma Team 2025, "Gemma 3").

    Attributes:
        early: numbers of layers, from 1 on, whose output gives further parts of each vector, in
            order, through a norm and projections of their own (Meng et al. 2024, "DeepStack").
    """

    skipped: Count  # number of first vectors that are left out, such as that of a class token
    projections: Some[Projection]  # of each vector, in order
    pixel_shuffle: Size = 1  # side of the squares that are joined
    average: Size = 1  # side of the squares that are averaged
    norm: NormConfig | None = None  # of the joined or averaged vectors
    early: tuple[int, ...] = ()
    early_norm: NormConfig | None = None  # of the joined vectors of these layers

    @property
    def width(self) -> int:
        """Numbers of a vector, with its further parts."""
        return (1 + len(self.early)) * self.projections[-1].width

    @property
    def square(self) -> int:
        """Side of the squares of patches that become one vector."""
        return self.pixel_shuffle * self.average

    def _check(self) -> None:
        if self.pixel_shuffle > 1 and self.average > 1:
            raise ConfigError("head: squares are either joined or averaged. Set one of them to 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CtcHead(Config):
    """Logits of `size` symbols for every vector of a sound, one of them the blank.

    Source: Graves et al. 2006, "CTC".
    """

    size: Size


Head = LanguageModelHead | ClassifierHead | EmbeddingHead | FeatureHead | CtcHead
