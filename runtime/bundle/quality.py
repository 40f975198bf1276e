"""How close a bundle is to the trained model: measurements, and a word for them.

Whether a device computes what was exported is another question: `ortolan.runtime.verification`.
"""

from typing import Annotated, Literal, get_args

from msgspec import Meta

from ortolan.runtime.bundle.field_types import Record

Word = Literal["excellent", "good", "fair", "poor"]

KL_SCALE = (0.01, 0.05, 0.15)
"""Mean KL divergence, in nats, below which a bundle is excellent, good and fair; else poor."""

COSINE_SCALE = (0.001, 0.005, 0.02)
"""The same for the mean cosine distance of vectors, and for half the squared error of scores
relative to their mean square.

A vector of E numbers at distance d changes its cosine with any third vector by about sqrt(2 d / E).
For E = 384 that is 0.002, 0.005 and 0.01, where neighbors in a ranked list are 0.01 apart.
"""

_Sentence = Annotated[str, Meta(min_length=1, max_length=200)]


class Quality(Record, frozen=True, kw_only=True):
    """Measured distance between a bundle and the trained model.

    Distributions are compared by KL divergence, vectors and scores by a distance; the figures of
    the other comparison are `None`.

    Attributes:
        word: `excellent`, `good`, `fair` or `poor`.
        text: description of the text that it was measured on.
        mean_kl: mean KL divergence, in nats.
        p99_kl: 99th percentile of the KL divergence.
        top1_agreement: share of positions with the same most probable token or label.
        perplexity: perplexity of the text; `None` if no token follows another.
        trained_perplexity: perplexity under the trained model.
        mean_cosine: mean distance of the vectors or scores.
        p99_cosine: 99th percentile of the distance.
        advice: changes that would bring the bundle closer.
        distance: name of the distance, if it is not the cosine distance.
        graph_kl: mean KL divergence of each graph, `prefill` and `decode`, where prompts have
            weights of their own. The word is that of the larger one.
    """

    word: Word
    text: _Sentence
    mean_kl: float | None = None
    p99_kl: float | None = None
    top1_agreement: float | None = None
    perplexity: float | None = None
    trained_perplexity: float | None = None
    mean_cosine: float | None = None
    p99_cosine: float | None = None
    advice: tuple[_Sentence, ...] = ()
    distance: _Sentence | None = None
    graph_kl: dict[Literal["prefill", "decode"], float] | None = None

    @property
    def figures(self) -> str:
        """The figures in one line."""
        if self.mean_kl is None:
            distance = "cosine distance" if self.distance is None else self.distance
            parts = [
                f"mean {distance} {self.mean_cosine or 0:.2g} "
                f"(99 % below {self.p99_cosine or 0:.2g})"
            ]
        else:
            parts = [
                f"mean KL {self.mean_kl:.2g} (99 % below {self.p99_kl or 0:.2g})",
                f"top-1 {self.top1_agreement or 0:.1%}",
            ]
        if self.graph_kl is not None:
            parts += [f"{name} {kl:.2g}" for name, kl in self.graph_kl.items()]
        if self.perplexity is not None:
            parts.append(
                f"perplexity {self.perplexity:.4g} (trained {self.trained_perplexity or 0:.4g})"
            )
        return f"{', '.join(parts)}, on {self.text}"

    @property
    def summary(self) -> str:
        """The word and the figures in one line."""
        return f"{self.word}: {self.figures}"


def rate(*, mean_kl: float | None, mean_cosine: float | None) -> Word:
    """Return the word for a mean KL divergence, or for a mean distance."""
    scale = KL_SCALE if mean_kl is not None else COSINE_SCALE
    distance = mean_cosine if mean_kl is None else mean_kl
    words: tuple[Word, ...] = get_args(Word)
    # negated, so that NaN is poor
    return words[sum(not (distance or 0.0) < bound for bound in scale)]
