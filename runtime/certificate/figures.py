"""How far outputs are from a reference: differences, their sums, and the verdict.

Knows numbers and thresholds. Does not know how the outputs were computed.

Shape letters: R positions, K kept logits, V vocabulary or labels, E width of a vector.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.certificate.fields import (
    Certificate,
    Divergence,
    Logits,
    Phase,
    PhaseName,
    Report,
    Thresholds,
    Vectors,
)

__all__ = [
    "Comparison",
    "Differences",
    "Numbers",
    "Surprise",
    "compare",
    "divergence",
    "log_sum_exp",
    "summarize",
    "widened",
]

_REST = 1e-5
"""Probability of the tokens not kept, at least: float32 does not tell smaller ones apart."""

_TINY = 1e-300
"""In place of 0 before a logarithm."""

Numbers = NDArray[np.float32]


def summarize(
    logits_RV: NDArray[Any], top_k: int
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
    """Keep of logits what a certificate keeps. Of equal logits the lower id comes first.

    Args:
        logits_RV: any float type.
        top_k: `K`, at least 2 and at most `V`.

    Returns:
        `top_ids (R, K)`, `top_logits (R, K)` and `log_sum_exp (R,)`.
    """
    top_ids = np.argsort(-logits_RV, axis=-1, kind="stable")[:, :top_k]
    return (
        top_ids.astype(np.int32),
        np.take_along_axis(logits_RV, top_ids, axis=-1).astype(np.float32),
        log_sum_exp(logits_RV).astype(np.float32),
    )


def log_sum_exp(logits_RV: NDArray[Any]) -> NDArray[np.float64]:
    """Logarithm of the sum of exponentials of each row, `(R,)`, summed in float64."""
    sums = np.empty(len(logits_RV), np.float64)
    # row by row: float64 for one row of the vocabulary, not for all of them
    for index, row in enumerate(logits_RV):
        wide = row.astype(np.float64)
        highest = wide.max()
        sums[index] = highest + np.log(np.exp(wide - highest).sum())
    return sums


def widened(logits_RV: NDArray[Any]) -> NDArray[Any]:
    """Logits of at least two classes: a single one is weighed against a logit of 0."""
    if logits_RV.shape[-1] > 1:
        return logits_RV
    return np.concatenate((logits_RV, np.zeros_like(logits_RV)), axis=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Of some positions, `(R,)` each.

    Attributes:
        distance: divergence of the distributions, or distance of the vectors.
        same_top1: whether the same token or label is the most probable; True for vectors.
        gap: between the reference's two highest logits; 0 for vectors.
    """

    delta: NDArray[np.float64]
    distance: NDArray[np.float64]
    same_top1: NDArray[np.bool_]
    gap: NDArray[np.float64]
    finite: NDArray[np.bool_]


def compare(reference: Logits | Vectors, part: slice, outputs: Numbers) -> Differences:
    """Some rows of a reference with what was computed for them, `(R, V)` or `(R, E)`."""
    finite = np.asarray(np.isfinite(outputs).all(axis=-1))
    # figures of these rows are taken out again; zeros keep them from warnings
    sound = outputs if finite.all() else np.where(finite[:, None], outputs, 0)
    match reference:
        case Logits():
            return _compare_logits(reference, part, widened(sound), finite)
        case Vectors(values=values):
            return _compare_vectors(values[part], sound, finite)


def _compare_logits(
    reference: Logits, part: slice, logits_RV: Numbers, finite: NDArray[np.bool_]
) -> Differences:
    top_ids_RK = reference.top_ids[part]
    expected_RK = reference.top_logits[part].astype(np.float64)
    got_RK = np.take_along_axis(logits_RV, top_ids_RK, axis=-1).astype(np.float64)
    kl = divergence(
        expected_RK - reference.log_sum_exp[part, None].astype(np.float64),
        got_RK - log_sum_exp(logits_RV)[:, None],
    )
    return Differences(
        delta=np.where(finite, np.abs(got_RK - expected_RK).max(axis=-1), 0),
        distance=np.where(finite, kl, 0),
        same_top1=finite & (logits_RV.argmax(axis=-1) == top_ids_RK[:, 0]),
        gap=expected_RK[:, 0] - expected_RK[:, 1],
        finite=finite,
    )


def _compare_vectors(values_RE: Numbers, got_RE: Numbers, finite: NDArray[np.bool_]) -> Differences:
    expected, got = values_RE.astype(np.float64), got_RE.astype(np.float64)
    lengths = np.linalg.norm(expected, axis=-1) * np.linalg.norm(got, axis=-1)
    cosine = (expected * got).sum(axis=-1) / np.maximum(lengths, _TINY)
    # A vector of zeros has no direction to miss, as long as both are such.
    both_zero = ~expected.any(axis=-1) & ~got.any(axis=-1)
    distance = np.where(both_zero, 0, np.maximum(1 - cosine, 0))
    return Differences(
        delta=np.where(finite, np.abs(got - expected).max(axis=-1), 0),
        distance=np.where(finite, distance, 0),
        same_top1=np.ones(len(got), np.bool_) & finite,
        gap=np.zeros(len(got)),
        finite=finite,
    )


def divergence(p_RK: NDArray[np.float64], q_RK: NDArray[np.float64]) -> NDArray[np.float64]:
    """Kullback-Leibler divergence `(R,)` of q from p, logarithms of probabilities.

    The tokens not kept count as one. By the chain rule that is the divergence of the two sums,
    kept and not kept, and that among the kept tokens; the second does not depend on the
    logarithm of all, whose rounding would be larger than what is measured.
    """
    p_kept, q_kept = (np.exp(part).sum(axis=-1) for part in (p_RK, q_RK))
    p_kept = np.minimum(p_kept, 1 - _REST)
    q_kept = np.clip(q_kept, _TINY, 1 - _REST)
    sums = p_kept * np.log(p_kept / q_kept)
    sums += (1 - p_kept) * np.log((1 - p_kept) / (1 - q_kept))
    p_RK, q_RK = (part - log_sum_exp(part)[:, None] for part in (p_RK, q_RK))
    among_kept = (np.exp(p_RK) * (p_RK - q_RK)).sum(axis=-1)
    found: NDArray[np.float64] = np.maximum(sums + p_kept * among_kept, 0)
    return found


@dataclass(slots=True, kw_only=True)
class Surprise:
    """Negative logarithms of the probabilities of the probes' own tokens, in nats."""

    tokens: int = 0
    ours: float = 0.0
    reference: float = 0.0

    def add(self, kept: Logits, part: slice, next_ids: list[int], logits_RV: Numbers) -> None:
        """Count the positions of a block that a token follows."""
        if kept.next_logits is None:
            return
        count = min(len(next_ids), len(logits_RV))
        rows = np.arange(count)
        ours = log_sum_exp(logits_RV[:count]) - logits_RV[rows, next_ids[:count]]
        reference = (kept.log_sum_exp[part] - kept.next_logits[part])[:count]
        finite = np.isfinite(ours)
        self.tokens += int(finite.sum())
        self.ours += float(ours[finite].sum())
        self.reference += float(reference[finite].sum(dtype=np.float64))

    def perplexities(self) -> tuple[float, float]:
        """Of this bundle and of the reference."""
        tokens = max(self.tokens, 1)
        # A model that is broken may exceed what a float holds.
        ours, reference = (min(nats / tokens, 700.0) for nats in (self.ours, self.reference))
        return math.exp(ours), math.exp(reference)


@dataclass(slots=True, kw_only=True)
class _Tally:
    """Sums of one phase, or of all."""

    positions: int = 0
    max_abs_delta: float = 0.0
    sum_distance: float = 0.0
    max_distance: float = 0.0
    same_top1: int = 0
    near_ties: int = 0
    flips: int = 0
    non_finite: int = 0

    def add(self, differences: Differences, near_tie: float | None) -> None:
        changed = ~differences.same_top1 & differences.finite
        near = 0 if near_tie is None else int((changed & (differences.gap <= near_tie)).sum())
        self.positions += len(differences.delta)
        self.max_abs_delta = max(self.max_abs_delta, float(differences.delta.max()))
        self.sum_distance += float(differences.distance.sum())
        self.max_distance = max(self.max_distance, float(differences.distance.max()))
        self.same_top1 += int(differences.same_top1.sum())
        self.near_ties += near
        self.flips += int(changed.sum()) - near
        self.non_finite += int((~differences.finite).sum())

    def phase(self, *, are_logits: bool) -> Phase:
        mean = self.sum_distance / max(1, self.positions - self.non_finite)
        return Phase(
            positions=self.positions,
            max_abs_delta=self.max_abs_delta,
            mean_kl=mean if are_logits else None,
            max_kl=self.max_distance if are_logits else None,
            top1_agreement=self.same_top1 / self.positions if are_logits else None,
            near_ties=self.near_ties,
            non_finite=self.non_finite,
            mean_cosine=None if are_logits else mean,
            max_cosine=None if are_logits else self.max_distance,
        )


class Comparison:
    """Everything compared with a certificate so far.

    Attributes:
        surprise: of the probes' own tokens, where one follows another.
    """

    def __init__(self, certificate: Certificate) -> None:
        reference, bound = certificate.reference, certificate.thresholds.max_abs_delta
        self.surprise = Surprise()
        self._certificate = certificate
        self._are_logits = isinstance(reference, Logits)
        kept = reference.top_logits if isinstance(reference, Logits) else reference.values
        self._largest = float(np.abs(kept).max())
        self._max_delta = math.inf if bound is None else bound * max(1.0, self._largest)
        self._phases: dict[PhaseName, _Tally] = {}
        self._whole = _Tally()
        self._first: Divergence | None = None

    def add(
        self, phase: PhaseName, probe: str, positions: list[int], part: slice, outputs: Numbers
    ) -> None:
        """Compare some rows.

        Args:
            phase: how they were computed.
            probe: of which probe they are.
            positions: of the rows within the probe.
            part: of the rows among all of the reference.
            outputs: `(R, V)` or `(R, E)`.
        """
        thresholds = self._certificate.thresholds
        differences = compare(self._certificate.reference, part, outputs)
        for tally in (self._phases.setdefault(phase, _Tally()), self._whole):
            tally.add(differences, thresholds.near_tie)
        diverged = ~differences.same_top1 | (differences.delta > self._max_delta)
        if self._first is None and diverged.any():
            position = positions[int(diverged.argmax())]
            self._first = Divergence(probe=probe, position=position, phase=phase)

    def report(self, *, device: str, onnxruntime: str, seconds: float) -> Report:
        """The figures so far."""
        certificate = self._certificate
        whole = self._whole.phase(are_logits=self._are_logits)
        has_next = self._are_logits and certificate.model_kind.has_decoder
        perplexities = self.surprise.perplexities() if has_next else (None, None)
        return Report(
            verdict=self._verdict(whole, certificate.thresholds),
            max_abs_delta=whole.max_abs_delta,
            max_abs_logit=self._largest,
            mean_kl=whole.mean_kl,
            max_kl=whole.max_kl,
            top1_agreement=whole.top1_agreement,
            near_ties=whole.near_ties,
            perplexity=perplexities[0],
            reference_perplexity=perplexities[1],
            non_finite=whole.non_finite,
            first_divergence=self._first,
            phases={
                name: tally.phase(are_logits=self._are_logits)
                for name, tally in self._phases.items()
            },
            device=device,
            onnxruntime=onnxruntime,
            seconds=seconds,
            kind=certificate.kind,
            output=certificate.output,
            mean_cosine=whole.mean_cosine,
            max_cosine=whole.max_cosine,
        )

    def _verdict(
        self, whole: Phase, thresholds: Thresholds
    ) -> Literal["PASS", "AMBIGUOUS", "FAIL"]:
        flips = self._whole.flips if thresholds.near_tie is not None else 0
        if (
            whole.non_finite > 0
            or flips > 0
            or whole.max_abs_delta > self._max_delta
            or any(distance > bound for distance, bound in _bounded(whole, thresholds))
        ):
            return "FAIL"
        return "AMBIGUOUS" if whole.near_ties > 0 else "PASS"


def _bounded(whole: Phase, thresholds: Thresholds) -> Iterator[tuple[float, float]]:
    """Each mean distance and its bound."""
    for distance, bound in (
        (whole.mean_kl, thresholds.mean_kl),
        (whole.mean_cosine, thresholds.mean_cosine),
    ):
        if distance is not None and bound is not None:
            yield distance, bound
