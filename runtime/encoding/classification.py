"""Classifications: the labels of an input with their scores."""

from dataclasses import dataclass

from ortolan.runtime.bundle.labels import distinct, named_scores
from ortolan.runtime.bundle.manifest import wrong_kind
from ortolan.runtime.encoding.call import EncoderCall, Row
from ortolan.runtime.encoding.rows import Rows
from ortolan.runtime.errors import BundleKindError
from ortolan.runtime.inputs.input_reader import Inputs


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


def classify_call(
    rows: Rows, inputs: Inputs, *, truncate: bool
) -> EncoderCall[list[Classification]]:
    """See `Encoder.classify`."""
    kind = rows.manifest.output_kind
    function = kind.scores
    if function is None or kind.by_token:
        raise wrong_kind(rows.manifest, what="classify", expected="an encoder with labels")
    labels = distinct(rows.output.labels)

    def finish(outputs: list[Row]) -> list[Classification]:
        return [
            classification(
                named_scores(row, function, labels), are_probabilities=function != "none"
            )
            for row in outputs
        ]

    return rows.call(inputs, finish, truncate=truncate)


def classification(scores: dict[str, float], *, are_probabilities: bool = True) -> Classification:
    """Return ranked scores with the first label."""
    label, score = next(iter(scores.items()))
    return Classification(
        label=label, score=score, scores=scores, are_probabilities=are_probabilities
    )
