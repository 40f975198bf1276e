"""How far an exported model is from the trained one: figures, and a word for them.

That a device computes what was exported is another question: `ortolan.runtime.verification`.
"""

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

__all__ = ["COSINE_SCALE", "KL_SCALE", "Quality", "Word", "rate"]

Word = Literal["excellent", "good", "fair", "poor"]

KL_SCALE = (0.01, 0.05, 0.15)
"""Mean divergence in nats below which a model is excellent, good and fair; above it is poor."""

COSINE_SCALE = (0.001, 0.005, 0.02)
"""The same of the mean cosine distance d of vectors, and of half the squared error of scores,
relative to their mean square.

A vector of E numbers that is d away moves its cosine with any third one by about sqrt(2 d / E):
with E = 384, 0.002, 0.005 and 0.01, where neighbours in a ranked list are 0.01 apart.
"""

_Sentence = Annotated[str, Meta(min_length=1, max_length=200)]


class Quality(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a bundle is from the trained model, as measured.

    Attributes:
        text: what it was measured on, in words.
        mean_kl: divergence of the distributions in nats. This and the next four: `None` where
            vectors are compared.
        p99_kl: below which 99 % of the positions are.
        top1_agreement: share of positions with the same most probable token or label.
        perplexity: of the text; `None` where no token follows another.
        trained_perplexity: the same of the trained model.
        mean_cosine: distance of the vectors, or of scores; `None` where distributions are compared.
        p99_cosine: below which 99 % of them are.
        advice: what would bring it nearer.
        distance: what `mean_cosine` is the mean of, in words, where it is no cosine distance.
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
    # absent, not null, in the manifests that were written before it: their hashes stay the same
    distance: _Sentence | UnsetType = UNSET

    @property
    def figures(self) -> str:
        """In one line, without the word."""
        if self.mean_kl is None:
            distance = "cosine distance" if self.distance is UNSET else self.distance
            parts = [
                f"mean {distance} {self.mean_cosine or 0:.2g} "
                f"(99 % below {self.p99_cosine or 0:.2g})"
            ]
        else:
            parts = [
                f"mean KL {self.mean_kl:.2g} (99 % below {self.p99_kl or 0:.2g})",
                f"top-1 {self.top1_agreement or 0:.1%}",
            ]
        if self.perplexity is not None:
            parts.append(
                f"perplexity {self.perplexity:.4g} (trained {self.trained_perplexity or 0:.4g})"
            )
        return f"{', '.join(parts)}, on {self.text}"

    @property
    def summary(self) -> str:
        """In one line."""
        return f"{self.word}: {self.figures}"


def rate(*, mean_kl: float | None, mean_cosine: float | None) -> Word:
    """The word for a mean divergence, or for a mean distance of vectors."""
    scale = KL_SCALE if mean_kl is not None else COSINE_SCALE
    got = mean_cosine if mean_kl is None else mean_kl
    words: tuple[Word, ...] = get_args(Word)
    place = sum(not (got or 0.0) < bound for bound in scale)
    return words[place]
