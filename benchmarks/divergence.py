"""How far the predictions of one model are from those of another. Knows logits, not engines."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """What was found at each of some positions, `(positions,)` each.

    Attributes:
        kl: nats of KL(reference || model).
        agrees: whether both find the same token likeliest.
        nats: what the model needs for the token that follows.
    """

    kl: Floats
    agrees: NDArray[np.bool_]
    nats: Floats

    @classmethod
    def of(
        cls,
        reference_PV: NDArray[np.float32],
        logits_PV: NDArray[np.float32],
        targets_P: Sequence[int],
    ) -> Self:
        """Compare the logits at P positions, each of which a target follows."""
        expected_PV = log_softmax(reference_PV)
        found_PV = log_softmax(logits_PV)
        return cls(
            kl=(np.exp(expected_PV) * (expected_PV - found_PV)).sum(axis=1),
            agrees=expected_PV.argmax(axis=1) == found_PV.argmax(axis=1),
            nats=-found_PV[np.arange(len(targets_P)), list(targets_P)],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """One model against its reference over some text."""

    mean_kl: float
    p99_kl: float
    max_kl: float
    top1_agreement: float
    bits_per_byte: float

    @classmethod
    def of(cls, found: Sequence[Predictions], *, text_bytes: int) -> Self:
        """Summarize the predictions over a text of `text_bytes`, each of its tokens once."""
        kl = np.concatenate([predictions.kl for predictions in found])
        agrees = np.concatenate([predictions.agrees for predictions in found])
        nats = math.fsum(float(predictions.nats.sum()) for predictions in found)
        return cls(
            mean_kl=float(kl.mean()),
            p99_kl=float(np.quantile(kl, 0.99)),
            max_kl=float(kl.max()),
            top1_agreement=float(agrees.mean()),
            bits_per_byte=nats / math.log(2) / text_bytes,
        )


def log_softmax(logits_PV: NDArray[np.float32]) -> Floats:
    """Return logarithms of probabilities, in float64."""
    shifted = logits_PV.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted
