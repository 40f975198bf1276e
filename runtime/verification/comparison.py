"""How far outputs are from a reference: differences, their sums, and the verdict.

Shape letters: R positions, K kept logits, V vocabulary or labels, E width of a vector.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.kinds import OUTPUTS, ScoreFunction
from ortolan.runtime.verification.certificate import Certificate, Logits, Vectors
from ortolan.runtime.verification.report import Divergence, Phase, PhaseName, Report

__all__ = [
    "Comparison",
    "Differences",
    "Numbers",
    "Rows",
    "compare",
    "divergence",
    "independent_divergence",
    "log_sum_exp",
    "summarize",
    "widened",
]

_REST = 1e-5
"""Probability of the tokens not kept, at least: float32 does not tell smaller ones apart."""

_TINY = 1e-300
"""In place of 0 before a logarithm."""

_LEAST_SQUARE = 1e-12
"""Floor of the mean square of scores: an error of scores that are all 0 is not relative to them."""

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
class Rows:
    """Some rows of the outputs of one probe, computed in one way.

    Attributes:
        positions: of the rows within the probe.
        part: of the rows among all of the reference.
        next_ids: the tokens from the one that follows the first row on; none where there are no
            such tokens.
        outputs: `(R, V)` or `(R, E)`.
    """

    phase: PhaseName
    probe: str
    positions: list[int]
    part: slice
    next_ids: list[int]
    outputs: Numbers


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

    @property
    def changed(self) -> NDArray[np.bool_]:
        """Where another token or label is the most probable, and outputs are finite."""
        return ~self.same_top1 & self.finite

    @classmethod
    def joined(cls, parts: Sequence["Differences"]) -> "Differences":
        """Several parts as one."""
        names = [entry.name for entry in fields(cls)]
        return cls(**{n: np.concatenate([getattr(part, n) for part in parts]) for n in names})


def compare(
    reference: Logits | Vectors, part: slice, outputs: Numbers, scores: ScoreFunction | None = None
) -> Differences:
    """Some rows of a reference with what was computed for them, `(R, V)` or `(R, E)`.

    Args:
        reference: all of it.
        part: the rows in it.
        outputs: what was computed for these.
        scores: what turns the outputs into scores of labels, where they are of labels.
    """
    finite = np.asarray(np.isfinite(outputs).all(axis=-1))
    # figures of these rows are taken out again; zeros keep them from warnings
    sound = outputs if finite.all() else np.where(finite[:, None], outputs, 0)
    match reference:
        case Logits():
            return _compare_logits(reference, part, widened(sound), finite, scores)
        case Vectors(values=values):
            found = _compare_vectors(values[part], sound, finite)
            if scores is None:
                return found
            return replace(found, distance=np.where(finite, _errors(values, part, sound), 0))


def _compare_logits(
    reference: Logits,
    part: slice,
    logits_RV: Numbers,
    finite: NDArray[np.bool_],
    scores: ScoreFunction | None,
) -> Differences:
    top_ids_RK = reference.top_ids[part]
    expected_RK = reference.top_logits[part].astype(np.float64)
    got_RK = np.take_along_axis(logits_RV, top_ids_RK, axis=-1).astype(np.float64)
    if scores == "sigmoid":
        kl = independent_divergence(expected_RK, got_RK)
    else:
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


def independent_divergence(
    p_RK: NDArray[np.float64], q_RK: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Kullback-Leibler divergence `(R,)` of q from p, logits of labels that do not exclude others.

    The sum of those of the labels.
    """
    # log sigmoid(x) = -log(1 + exp(-x)); of the absence of a label, of -x
    both = [
        np.exp(-np.logaddexp(0, -sign * p_RK))
        * (np.logaddexp(0, -sign * q_RK) - np.logaddexp(0, -sign * p_RK))
        for sign in (1, -1)
    ]
    found: NDArray[np.float64] = np.maximum(sum(both), 0).sum(axis=-1)
    return found


def _errors(values_RE: Numbers, part: slice, got_RE: Numbers) -> NDArray[np.float64]:
    """Half the squared error of scores `(R,)`, relative to the mean square of the reference's.

    For vectors of one length it is their cosine distance; unlike that, it knows the size of a
    single score.
    """
    expected = values_RE.astype(np.float64)
    square = max(float((expected**2).sum(axis=-1).mean()), _LEAST_SQUARE)
    found: NDArray[np.float64] = ((got_RE - expected[part]) ** 2).sum(axis=-1) / (2 * square)
    return found


def _negative_logs(kept: Logits, rows: Rows) -> NDArray[np.float64]:
    """Of the tokens that follow the rows, `(tokens, 2)` in nats: of outputs and reference."""
    count = min(len(rows.next_ids), len(rows.outputs))
    if kept.next_logits is None or count == 0:
        return np.empty((0, 2))
    logits_RV, part = rows.outputs[:count], rows.part
    ours = log_sum_exp(logits_RV) - logits_RV[np.arange(count), rows.next_ids[:count]]
    reference = (kept.log_sum_exp[part] - kept.next_logits[part])[:count]
    both: NDArray[np.float64] = np.stack((ours, reference), axis=-1)
    return both[np.isfinite(ours)]


class Comparison:
    """Everything compared with a certificate so far."""

    def __init__(self, certificate: Certificate) -> None:
        reference, bound = certificate.reference, certificate.thresholds.max_abs_delta
        self._certificate = certificate
        self._are_logits = isinstance(reference, Logits)
        self._scores = OUTPUTS[certificate.output].scores
        kept = reference.top_logits if isinstance(reference, Logits) else reference.values
        self._largest = float(np.abs(kept).max())
        self._max_delta = math.inf if bound is None else bound * max(1.0, self._largest)
        self._phases: dict[PhaseName, list[Differences]] = {}
        self._negative_logs: list[NDArray[np.float64]] = [np.empty((0, 2))]
        self._first: Divergence | None = None

    def add(self, rows: Rows) -> None:
        """Compare some rows."""
        reference = self._certificate.reference
        differences = compare(reference, rows.part, rows.outputs, self._scores)
        self._phases.setdefault(rows.phase, []).append(differences)
        diverged = ~differences.same_top1 | (differences.delta > self._max_delta)
        if self._first is None and diverged.any():
            position = rows.positions[int(diverged.argmax())]
            self._first = Divergence(probe=rows.probe, position=position, phase=rows.phase)
        if rows.phase == "prefill" and isinstance(reference, Logits):
            self._negative_logs.append(_negative_logs(reference, rows))

    def report(self, *, device: str, onnxruntime: str, seconds: float) -> Report:
        """The figures so far."""
        certificate = self._certificate
        phases = {name: Differences.joined(parts) for name, parts in self._phases.items()}
        everything = Differences.joined([*phases.values()])
        whole = self._phase(everything)
        figures = msgspec.structs.asdict(whole)
        del figures["positions"]
        ours, reference = self._perplexities()
        return Report(
            verdict=self._verdict(whole, everything),
            max_abs_logit=self._largest,
            perplexity=ours,
            reference_perplexity=reference,
            first_divergence=self._first,
            phases={name: self._phase(found) for name, found in phases.items()},
            device=device,
            onnxruntime=onnxruntime,
            seconds=seconds,
            kind=certificate.kind,
            output=certificate.output,
            text=certificate.text,
            thresholds=certificate.thresholds,
            **figures,
        )

    def _phase(self, found: Differences) -> Phase:
        finite = int(found.finite.sum())
        mean, largest = float(found.distance.sum()) / max(1, finite), float(found.distance.max())
        most = float(np.quantile(found.distance, 0.99))
        return Phase(
            positions=len(found.delta),
            max_abs_delta=float(found.delta.max()),
            mean_kl=mean if self._are_logits else None,
            max_kl=largest if self._are_logits else None,
            top1_agreement=float(found.same_top1.mean()) if self._are_logits else None,
            near_ties=int(self._near_ties(found).sum()),
            non_finite=len(found.delta) - finite,
            mean_cosine=None if self._are_logits else mean,
            max_cosine=None if self._are_logits else largest,
            p99_kl=most if self._are_logits else None,
            p99_cosine=None if self._are_logits else most,
        )

    def _near_ties(self, found: Differences) -> NDArray[np.bool_]:
        """Where the two most probable tokens, nearly tied, changed places."""
        bound = self._certificate.thresholds.near_tie
        return found.changed & (found.gap <= (-1.0 if bound is None else bound))

    def _perplexities(self) -> tuple[float, float] | tuple[None, None]:
        """Of this bundle and of the reference, where one token follows another."""
        if not (self._are_logits and self._certificate.model_kind.has_decoder):
            return None, None
        nats = np.concatenate(self._negative_logs)
        # a model that is broken may exceed what a float holds
        ours, reference = np.exp(np.minimum(nats.sum(axis=0) / max(len(nats), 1), 700.0)).tolist()
        return ours, reference

    def _verdict(self, whole: Phase, found: Differences) -> Literal["PASS", "AMBIGUOUS", "FAIL"]:
        thresholds = self._certificate.thresholds
        changed = int(found.changed.sum())
        distances = (
            (whole.mean_kl, thresholds.mean_kl),
            (whole.mean_cosine, thresholds.mean_cosine),
        )
        if (
            whole.non_finite > 0
            or whole.max_abs_delta > self._max_delta
            or (thresholds.near_tie is not None and changed > whole.near_ties)
            or any(got is not None and most is not None and got > most for got, most in distances)
        ):
            return "FAIL"
        return "AMBIGUOUS" if whole.near_ties > 0 else "PASS"
