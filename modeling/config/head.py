"""The heads of a model, as data; and the names of norms and activations."""

from dataclasses import dataclass
from typing import Literal

from ortolan.modeling.errors import ConfigError

Activation = Literal["relu", "relu2", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh"]
"""`gelu` is exact, `gelu_tanh` its approximation, `quick_gelu` the coarser `x sigmoid(1.702 x)`
(Hendrycks and Gimpel 2016); `relu2` is the square of `relu` (So et al. 2021).
"""

ScoreFunction = Literal["softmax", "sigmoid", "none"]
"""What turns the logits of labels into their scores: probabilities that add up to 1 (of a single
label: the logistic function), a probability for each label on its own, or nothing."""

Pooling = Literal["first", "last", "mean", "max", "mean_sqrt", "weighted_mean"]
"""One vector for the tokens that are no padding: the first one's, the last one's, their mean, the
largest value of each channel, their sum over the root of their number, or a mean in which token
`i` counts `i` times (Muennighoff 2022, "SGPT")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormConfig:
    """Layer norm (Ba et al. 2016) or RMS norm (Zhang and Sennrich 2019).

    Attributes:
        kind: which of them.
        eps: added to the variance, or to the mean square.
        scale: its output is multiplied by a trained weight.
        bias: of a layer norm; an RMS norm has none.
    """

    kind: Literal["layer", "rms"]
    eps: float
    scale: bool = True
    bias: bool = True

    def __post_init__(self) -> None:
        if self.kind == "layer" and self.bias and not self.scale:
            raise ConfigError(
                "norm: expected no bias where there is no weight, got one. Set bias to False."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModelHead:
    """Logits of the vocabulary for every token, as in masked language modelling.

    Attributes:
        tied: the last matrix is the embedding's table.
        bias: of the logits.
        activation: of a layer `norm(act(dense(x)))` before it; None without one.
        norm: of that layer.
        width: channels that come out of that layer; None for as many as the stream has.
        dense_bias: of the product in that layer.
    """

    tied: bool
    bias: bool
    activation: Activation | None = None
    norm: NormConfig | None = None
    width: int | None = None
    dense_bias: bool = True

    def __post_init__(self) -> None:
        if (self.activation is None) != (self.norm is None):
            raise ConfigError(
                "head: expected an activation and a norm, or neither, got one of them. Give both."
            )
        if self.width is not None and self.activation is None:
            raise ConfigError(
                f"head: expected a width of the layer before the logits, got {self.width} and no "
                "such layer. Leave it out."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLayer:
    """A layer `norm(act(dense(x)))` before the logits of a decoder."""

    activation: Activation
    norm: NormConfig
    bias: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierHead:
    """Logits of `labels` for the whole text or image.

    Attributes:
        scores: what is applied to the logits; the module itself returns logits.
        activation: of a layer `act(dense(x))` before the last; None without one.
        dense_bias: of the product in that layer.
        norm: of what comes out of that layer; None without one.
    """

    labels: tuple[str, ...]
    pooling: Pooling
    scores: ScoreFunction = "softmax"
    activation: Activation | None = None
    dense_bias: bool = True
    norm: NormConfig | None = None

    def __post_init__(self) -> None:
        if not self.labels:
            raise ConfigError("head: expected at least one label, got none. Check id2label.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """`act(dense(x))` of a pooled vector.

    Attributes:
        width: channels that come out.
        activation: None for the product alone.
    """

    width: int
    bias: bool = True
    activation: Activation | None = "tanh"

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ConfigError(
                f"head: expected a projection to at least one channel, got {self.width}. "
                "Correct it."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingHead:
    """One vector for the whole text (Reimers and Gurevych 2019).

    Attributes:
        pooling: side by side, where there are several.
        projections: of the pooled vector, one after the other.
        normalised: the vector that comes out has length 1.
    """

    pooling: tuple[Pooling, ...]
    projections: tuple[Projection, ...] = ()
    normalised: bool = True

    def width(self, hidden_size: int) -> int:
        """Channels of the embedding, for a stream of `hidden_size`."""
        if self.projections:
            return self.projections[-1].width
        return hidden_size * len(self.pooling)

    def __post_init__(self) -> None:
        if not self.pooling:
            raise ConfigError(
                "head: expected at least one way of pooling, got none. Give one, such as mean."
            )


Head = LanguageModelHead | ClassifierHead | EmbeddingHead
