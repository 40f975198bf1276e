"""Compares outputs with a reference, and decides the verdict.

Shape letters: R positions, K kept logits, V vocabulary or labels, E width of a vector.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.kinds import OUTPUTS, ScoreFunction
from ortolan.runtime.verification.certificate import Certificate, Logits, Vectors
from ortolan.runtime.verification.report import (
    Divergence,
    GraphName,
    Phase,
    PhaseName,
    Report,
)

_REST = 1e-5
"""Floor of the probability of all tokens that were not kept, from the precision of float32."""

_TINY = 1e-300
"""Floor that avoids log(0)."""

_LEAST_SQUARE = 1e-12
"""Floor of the mean square of scores, which avoids a division by 0."""

Numbers = NDArray[np.float32]


def summarize(logits_RV: NDArray[Any], top_k: int) -> Logits:
    """Return the part of logits that a certificate keeps. Ties go to the lower id."""
    top_ids = np.argsort(-logits_RV, axis=-1, kind="stable")[:, :top_k]
    return Logits(
        top_ids=top_ids.astype(np.int32),
        top_logits=np.take_along_axis(logits_RV, top_ids, axis=-1).astype(np.float32),
        log_sum_exp=log_sum_exp(logits_RV).astype(np.float32),
        next_logits=None,
    )


def log_sum_exp(logits_RV: NDArray[Any]) -> NDArray[np.float64]:
    """Return log(sum(exp(row))) for each row, `(R,)`, summed in float64."""
    sums = np.empty(len(logits_RV), np.float64)
    # row by row: widening all rows to float64 at once would take too much memory
    for index, row in enumerate(logits_RV):
        wide = row.astype(np.float64)
        highest = wide.max()
        sums[index] = highest + np.log(np.exp(wide - highest).sum())
    return sums


def widened(logits_RV: NDArray[Any]) -> NDArray[Any]:
    """Return logits of at least two classes: a single one gets a logit of 0 as its opposite."""
    if logits_RV.shape[-1] > 1:
        return logits_RV
    return np.concatenate((logits_RV, np.zeros_like(logits_RV)), axis=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A few rows of the outputs of one probe, `(R, V)` or `(R, E)`, computed in one way.

    Attributes:
        graph: where prompts and steps have different weights.
        positions: of the rows within the probe.
        part: of the rows among all rows of the reference.
        next_ids: tokens from the one after the first row on, if any.
    """

    phase: PhaseName
    graph: GraphName | None = None
    probe: str
    positions: list[int]
    part: slice
    next_ids: list[int]
    outputs: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Differences at a few positions, `(R,)` each.

    Attributes:
        delta: largest difference of one number.
        distance: KL divergence of the distributions, or distance of the vectors.
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
        """Finite positions where another token or label is the most probable."""
        return ~self.same_top1 & self.finite

    @classmethod
    def joined(cls, parts: Sequence["Differences"]) -> "Differences":
        """Concatenate parts."""
        names = [entry.name for entry in fields(cls)]
        return cls(**{n: np.concatenate([getattr(part, n) for part in parts]) for n in names})


def compare(
    reference: Logits | Vectors, part: slice, outputs: Numbers, scores: ScoreFunction | None = None
) -> Differences:
    """Compare outputs, `(R, V)` or `(R, E)`, with some rows of a reference."""
    finite = np.asarray(np.isfinite(outputs).all(axis=-1))
    # zeros avoid warnings; the figures of these rows are masked again below
    sound = outputs if finite.all() else np.where(finite[:, None], outputs, 0)
    same_top1, gap = np.ones(len(sound), np.bool_), np.zeros(len(sound))
    match reference:
        case Logits():
            logits_RV, top_ids_RK = widened(sound), reference.top_ids[part]
            expected = reference.top_logits[part].astype(np.float64)
            got = np.take_along_axis(logits_RV, top_ids_RK, axis=-1).astype(np.float64)
            same_top1 = logits_RV.argmax(axis=-1) == top_ids_RK[:, 0]
            gap = expected[:, 0] - expected[:, 1]
            if scores == "sigmoid":
                distance = independent_divergence(expected, got)
            else:
                distance = divergence(
                    expected - reference.log_sum_exp[part, None].astype(np.float64),
                    got - log_sum_exp(logits_RV)[:, None],
                )
        case Vectors(values=values):
            expected, got = values[part].astype(np.float64), sound.astype(np.float64)
            if scores is None:
                distance = _cosine_distances(expected, got)
            else:
                distance = _errors(values, part, sound)
    return Differences(
        delta=np.where(finite, np.abs(got - expected).max(axis=-1), 0),
        distance=np.where(finite, distance, 0),
        same_top1=finite & same_top1,
        gap=gap,
        finite=finite,
    )


def _cosine_distances(
    expected_RE: NDArray[np.float64], got_RE: NDArray[np.float64]
) -> NDArray[np.float64]:
    lengths = np.linalg.norm(expected_RE, axis=-1) * np.linalg.norm(got_RE, axis=-1)
    cosine = (expected_RE * got_RE).sum(axis=-1) / np.maximum(lengths, _TINY)
    # a vector of zeros has no direction, so two of them agree
    both_zero = ~expected_RE.any(axis=-1) & ~got_RE.any(axis=-1)
    return np.where(both_zero, 0, np.maximum(1 - cosine, 0))


def divergence(p_RK: NDArray[np.float64], q_RK: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the KL divergence `(R,)` of q from p, which are log probabilities.

    Tokens that were not kept count as one. By the chain rule the divergence is that of (kept, not
    kept) plus that among the kept tokens. The second part does not need the log-sum-exp of the
    vocabulary, whose rounding error would exceed the result.
    """
    p_kept, q_kept = (np.exp(part).sum(axis=-1) for part in (p_RK, q_RK))
    p_kept = np.minimum(p_kept, 1 - _REST)
    q_kept = np.clip(q_kept, _TINY, 1 - _REST)
    sums = p_kept * np.log(p_kept / q_kept)
    sums += (1 - p_kept) * np.log((1 - p_kept) / (1 - q_kept))
    p_RK, q_RK = (part - log_sum_exp(part)[:, None] for part in (p_RK, q_RK))
    among_kept = (np.exp(p_RK) * (p_RK - q_RK)).sum(axis=-1)
    total: NDArray[np.float64] = np.maximum(sums + p_kept * among_kept, 0)
    return total


def independent_divergence(
    p_RK: NDArray[np.float64], q_RK: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the KL divergence `(R,)` of q from p, which are logits of independent labels.

    It is the sum over labels.
    """
    # log sigmoid(x) = -log(1 + exp(-x)); for the absence of a label, of -x
    both = [
        np.exp(-np.logaddexp(0, -sign * p_RK))
        * (np.logaddexp(0, -sign * q_RK) - np.logaddexp(0, -sign * p_RK))
        for sign in (1, -1)
    ]
    total: NDArray[np.float64] = np.maximum(sum(both), 0).sum(axis=-1)
    return total


def _errors(values_RE: Numbers, part: slice, got_RE: Numbers) -> NDArray[np.float64]:
    """Return half the squared error of scores `(R,)`, relative to the reference's mean square.

    It equals the cosine distance for vectors of the same length, but also works for one score.
    """
    expected = values_RE.astype(np.float64)
    square = max(float((expected**2).sum(axis=-1).mean()), _LEAST_SQUARE)
    errors: NDArray[np.float64] = ((got_RE - expected[part]) ** 2).sum(axis=-1) / (2 * square)
    return errors


def _negative_logs(reference: Logits, rows: Rows) -> NDArray[np.float64]:
    """Return the cost of each next token in nats, `(tokens, 2)`: by outputs and by reference."""
    count = min(len(rows.next_ids), len(rows.outputs))
    if reference.next_logits is None or count == 0:
        return np.empty((0, 2))
    logits_RV, part = rows.outputs[:count], rows.part
    ours = log_sum_exp(logits_RV) - logits_RV[np.arange(count), rows.next_ids[:count]]
    expected = (reference.log_sum_exp[part] - reference.next_logits[part])[:count]
    both: NDArray[np.float64] = np.stack((ours, expected), axis=-1)
    return both[np.isfinite(ours)]


class Comparison:
    """Accumulates comparisons with a certificate."""

    def __init__(self, certificate: Certificate) -> None:
        reference, bound = certificate.reference, certificate.thresholds.max_abs_delta
        self._certificate = certificate
        self._are_logits = isinstance(reference, Logits)
        self._scores = OUTPUTS[certificate.output].scores
        values = reference.top_logits if isinstance(reference, Logits) else reference.values
        self._largest = float(np.abs(values).max())
        self._max_delta = math.inf if bound is None else bound * max(1.0, self._largest)
        self._phases: dict[PhaseName, list[Differences]] = {}
        self._graphs: dict[GraphName, list[Differences]] = {}
        self._negative_logs: list[NDArray[np.float64]] = [np.empty((0, 2))]
        self._first: Divergence | None = None

    def add(self, rows: Rows) -> None:
        """Compare a few rows."""
        reference = self._certificate.reference
        differences = compare(reference, rows.part, rows.outputs, self._scores)
        self._phases.setdefault(rows.phase, []).append(differences)
        if rows.graph is not None:
            self._graphs.setdefault(rows.graph, []).append(differences)
        diverged = ~differences.same_top1 | (differences.delta > self._max_delta)
        if self._first is None and diverged.any():
            position = rows.positions[int(diverged.argmax())]
            self._first = Divergence(probe=rows.probe, position=position, phase=rows.phase)
        if rows.phase == "prefill" and isinstance(reference, Logits):
            self._negative_logs.append(_negative_logs(reference, rows))

    def report(self, *, device: str, onnxruntime: str, seconds: float) -> Report:
        """Return the figures so far."""
        certificate = self._certificate
        phases = {name: Differences.joined(parts) for name, parts in self._phases.items()}
        everything = Differences.joined([*phases.values()])
        whole = self._phase(everything)
        graphs = {n: self._phase(Differences.joined(p)) for n, p in self._graphs.items()}
        figures = msgspec.structs.asdict(whole)
        del figures["positions"]
        ours, reference = self._perplexities()
        return Report(
            verdict=self._verdict(whole, everything, graphs.values()),
            max_abs_logit=self._largest,
            perplexity=ours,
            reference_perplexity=reference,
            first_divergence=self._first,
            phases={name: self._phase(part) for name, part in phases.items()},
            graphs=graphs,
            device=device,
            onnxruntime=onnxruntime,
            seconds=seconds,
            kind=certificate.kind,
            output=certificate.output,
            text=certificate.text,
            thresholds=certificate.thresholds,
            **figures,
        )

    def _phase(self, parts: Differences) -> Phase:
        finite = int(parts.finite.sum())
        mean, largest = float(parts.distance.sum()) / max(1, finite), float(parts.distance.max())
        p99 = float(np.quantile(parts.distance, 0.99))
        bound = self._certificate.thresholds.near_tie
        near_ties = parts.changed & (parts.gap <= (-1.0 if bound is None else bound))
        names = ("mean_kl", "max_kl", "p99_kl", "mean_cosine", "max_cosine", "p99_cosine")
        none = (None, None, None)
        values = (mean, largest, p99, *none) if self._are_logits else (*none, mean, largest, p99)
        return Phase(
            positions=len(parts.delta),
            max_abs_delta=float(parts.delta.max()),
            top1_agreement=float(parts.same_top1.mean()) if self._are_logits else None,
            near_ties=int(near_ties.sum()),
            non_finite=len(parts.delta) - finite,
            **dict(zip(names, values, strict=True)),
        )

    def _perplexities(self) -> tuple[float, float] | tuple[None, None]:
        """Return those of this bundle and of the reference, if one token follows another."""
        if not (self._are_logits and self._certificate.model_kind.has_decoder):
            return None, None
        nats = np.concatenate(self._negative_logs)
        # clamp: a broken model may overflow a float
        ours, reference = np.exp(np.minimum(nats.sum(axis=0) / max(len(nats), 1), 700.0)).tolist()
        return ours, reference

    def _verdict(
        self, whole: Phase, parts: Differences, graphs: Iterable[Phase]
    ) -> Literal["PASS", "AMBIGUOUS", "FAIL"]:
        thresholds = self._certificate.thresholds
        changed = int(parts.changed.sum())
        distances = (
            *((phase.mean_kl, thresholds.mean_kl) for phase in (whole, *graphs)),
            (whole.mean_cosine, thresholds.mean_cosine),
        )
        if (
            whole.non_finite > 0
            or whole.max_abs_delta > self._max_delta
            or (thresholds.near_tie is not None and changed > whole.near_ties)
            or any(
                value is not None and most is not None and value > most for value, most in distances
            )
        ):
            return "FAIL"
        return "AMBIGUOUS" if whole.near_ties > 0 else "PASS"
