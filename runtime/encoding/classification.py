"""Classifications: the labels of an input with their scores."""

from dataclasses import dataclass

from ortolan.runtime.errors import BundleKindError


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """Scores of the labels for a text or an image.

    `manifest.output_kind.scores` says what the scores are: probabilities that add up to 1
    (`softmax`), an independent probability per label (`sigmoid`), or values that the model was
    trained to predict (`none`), such as a number of stars.

    Attributes:
        label: with the highest score.
        score: of that label.
        scores: of all labels, highest first.
        are_probabilities: whether scores are between 0 and 1.
    """

    label: str
    score: float
    scores: dict[str, float]
    are_probabilities: bool = True

    @property
    def probability(self) -> float:
        """The score. Raises BundleKindError if it is not a probability."""
        return next(iter(self.probabilities.values()))

    @property
    def probabilities(self) -> dict[str, float]:
        """The scores. Raises BundleKindError if they are not probabilities."""
        if not self.are_probabilities:
            raise BundleKindError(
                "The scores of this model are not probabilities. Use score or scores."
            )
        return self.scores


def classification(scores: dict[str, float], *, are_probabilities: bool = True) -> Classification:
    """Return ranked scores with the first label."""
    label, score = next(iter(scores.items()))
    return Classification(
        label=label, score=score, scores=scores, are_probabilities=are_probabilities
    )
