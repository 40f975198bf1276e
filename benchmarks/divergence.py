"""Divergence of the predictions of two models, from their logits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """Comparison of two models at P positions, `(P,)` each.

    Attributes:
        kl: KL(reference || model) in nats.
        agrees: whether both consider the same token likeliest.
        nats: information content of the next token for the model.
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
        """Compare the logits at P positions, given the tokens that follow."""
        expected_PV = log_softmax(reference_PV)
        model_PV = log_softmax(logits_PV)
        return cls(
            kl=(np.exp(expected_PV) * (expected_PV - model_PV)).sum(axis=1),
            agrees=expected_PV.argmax(axis=1) == model_PV.argmax(axis=1),
            nats=-model_PV[np.arange(len(targets_P)), list(targets_P)],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """A model compared with its reference over some text."""

    mean_kl: float
    p99_kl: float
    max_kl: float
    top1_agreement: float
    bits_per_byte: float

    @classmethod
    def of(cls, parts: Sequence[Predictions], *, text_bytes: int) -> Self:
        """Summarize the predictions over a text of `text_bytes`, each of its tokens once."""
        kl = np.concatenate([predictions.kl for predictions in parts])
        agrees = np.concatenate([predictions.agrees for predictions in parts])
        nats = math.fsum(float(predictions.nats.sum()) for predictions in parts)
        return cls(
            mean_kl=float(kl.mean()),
            p99_kl=float(np.quantile(kl, 0.99)),
            max_kl=float(kl.max()),
            top1_agreement=float(agrees.mean()),
            bits_per_byte=nats / math.log(2) / text_bytes,
        )


def log_softmax(logits_PV: NDArray[np.float32]) -> Floats:
    """Log-probabilities in float64."""
    shifted = logits_PV.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted
