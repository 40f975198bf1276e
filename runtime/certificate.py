"""Replays the certificate of a bundle: does it compute here what PyTorch computed?

Knows how to run the probes and how to compare. Does not know PyTorch, nor which thresholds a
precision deserves: those come with the certificate.

Every probe is computed in the ways that generation uses:

1. prefill: the whole probe in one call;
2. decode: cached and teacher-forced, one token per call; of a long probe only the end, behind a
   prefill of the rest;
3. chunked: the longest probe, in several calls of several tokens.

Shape letters: R positions, K kept logits, V vocabulary.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle import open_bundle
from ortolan.runtime.certificate_files import (
    ARRAYS_NAME,
    JSON_NAME,
    Certificate,
    Divergence,
    Phase,
    PhaseName,
    Probe,
    Report,
    Thresholds,
    log_sum_exp,
    read,
    summarize,
    write,
)
from ortolan.runtime.packed import find_packed
from ortolan.runtime.session import Engine, onnxruntime_version
from ortolan.runtime.steps import Decoder, feed, prefill

__all__ = [
    "ARRAYS_NAME",
    "JSON_NAME",
    "Certificate",
    "Divergence",
    "Phase",
    "Probe",
    "Report",
    "Thresholds",
    "read",
    "replay",
    "summarize",
    "verify",
    "write",
]

BLOCK = 128
"""Positions whose logits are in memory at once: 64 MiB with a vocabulary of 128 Ki."""

TAIL = 64
"""Tokens at the end of a long probe that are decoded one by one."""

_REST = 1e-5
"""Probability of the tokens not kept, at least: float32 does not tell smaller ones apart."""

_TINY = 1e-300
"""In place of 0 before a logarithm."""

Logits = NDArray[np.float32]


def verify(
    path: str | Path,
    *,
    device: str = "auto",
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Replay the certificate of a bundle on this machine. Every file is hashed first.

    Args:
        path: folder of the bundle.
        device: as in `ortolan.load`.
        threads: as in `ortolan.load`.
        progress: called with the positions done and the positions in total.

    Raises:
        BundleError: the bundle is damaged.
        DeviceError: the device cannot be used.
        CertificateError: the certificate cannot be replayed.
    """
    bundle = open_bundle(path, full_check=True)
    packed = find_packed(bundle, onnxruntime=onnxruntime_version(), full_check=True)
    engine = Engine(bundle, device=device, threads=threads, packed=packed)
    return replay(engine, read(bundle), progress=progress)


def replay(
    engine: Engine,
    certificate: Certificate,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Compute the probes of a certificate and compare them with the reference.

    Args:
        engine: the sessions to compute them with.
        certificate: the reference, of the same model.
        progress: called with the positions done and the positions in total.
    """
    started = time.monotonic()
    runs = _runs(certificate)
    total = sum(run.positions for run in runs)
    done = 0
    max_abs_logit = float(np.abs(certificate.top_logits).max())
    bound = certificate.thresholds.max_abs_delta
    comparison = _Comparison(
        thresholds=certificate.thresholds,
        max_delta=math.inf if bound is None else bound * max(1.0, max_abs_logit),
    )
    surprise = _Surprise()
    for run in runs:
        for position, logits_RV in _WAYS[run.phase](engine, run.ids):
            part = slice(run.offset + position, run.offset + position + len(logits_RV))
            comparison.add(run, position, _compare(certificate, part, logits_RV))
            if run.phase == "prefill":
                surprise.add(certificate, part, run.ids[position + 1 :], logits_RV)
            done += len(logits_RV)
            if progress is not None:
                progress(done, total)
    return comparison.report(
        surprise,
        max_abs_logit=max_abs_logit,
        device=engine.device,
        seconds=time.monotonic() - started,
    )


# --- the ways to compute a probe --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One probe, computed in one way. `offset` is where it begins among all positions."""

    phase: PhaseName
    probe: str
    offset: int
    ids: list[int]

    @property
    def positions(self) -> int:
        return _decoded(len(self.ids)) if self.phase == "decode" else len(self.ids)


def _runs(certificate: Certificate) -> list[_Run]:
    offsets = np.cumsum([0, *(probe.length for probe in certificate.probes)]).tolist()
    longest = max(certificate.probes, key=lambda probe: probe.length)
    runs = []
    for probe, offset in zip(certificate.probes, offsets[:-1], strict=True):
        ids = certificate.token_ids[offset : offset + probe.length].tolist()
        phases: tuple[PhaseName, ...] = ("prefill", "decode")
        if probe is longest:
            phases = ("prefill", "decode", "chunked")
        runs += [_Run(phase=phase, probe=probe.name, offset=offset, ids=ids) for phase in phases]
    return runs


def _decoded(length: int) -> int:
    """How many tokens of a probe are decoded one by one."""
    return length if length <= 2 * TAIL else TAIL


def _in_one_call(engine: Engine, ids: list[int]) -> Iterator[tuple[int, Logits]]:
    """The whole probe in one call; again for each block of positions, so that memory is bounded."""
    cache = engine.cache()
    for start in range(0, len(ids), BLOCK):
        positions = range(start, min(start + BLOCK, len(ids)))
        yield start, feed(engine, cache, ids, positions=positions)
        cache.rewind(0)


def _one_by_one(engine: Engine, ids: list[int]) -> Iterator[tuple[int, Logits]]:
    cache = engine.cache()
    first = len(ids) - _decoded(len(ids))
    if first > 0:
        prefill(engine, cache, ids[:first])
    decoder = Decoder(engine, cache)
    for position in range(first, len(ids)):
        yield position, decoder.step([ids[position]], [position + 1])


def _in_chunks(engine: Engine, ids: list[int]) -> Iterator[tuple[int, Logits]]:
    cache = engine.cache()
    size = min(BLOCK, -(-len(ids) // 3))
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        yield start, feed(engine, cache, part, positions=range(len(part)))


_WAYS: dict[PhaseName, Callable[[Engine, list[int]], Iterator[tuple[int, Logits]]]] = {
    "prefill": _in_one_call,
    "decode": _one_by_one,
    "chunked": _in_chunks,
}


# --- the comparison ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Differences:
    """Of some positions, `(R,)` each; `gap` is between the reference's two highest logits."""

    delta: NDArray[np.float64]
    kl: NDArray[np.float64]
    same_top1: NDArray[np.bool_]
    gap: NDArray[np.float64]
    finite: NDArray[np.bool_]


def _compare(certificate: Certificate, part: slice, logits_RV: Logits) -> _Differences:
    top_ids_RK = certificate.top_ids[part]
    expected_RK = certificate.top_logits[part].astype(np.float64)
    finite = np.asarray(np.isfinite(logits_RV).all(axis=-1))
    # figures of these rows are taken out again; zeros keep them from warnings
    sound_RV = logits_RV if finite.all() else np.where(finite[:, None], logits_RV, 0)
    got_RK = np.take_along_axis(sound_RV, top_ids_RK, axis=-1).astype(np.float64)
    delta = np.abs(got_RK - expected_RK).max(axis=-1)
    kl = _divergence(
        expected_RK - certificate.log_sum_exp[part, None].astype(np.float64),
        got_RK - log_sum_exp(sound_RV)[:, None],
    )
    return _Differences(
        delta=np.where(finite, delta, 0),
        kl=np.where(finite, kl, 0),
        same_top1=finite & (sound_RV.argmax(axis=-1) == top_ids_RK[:, 0]),
        gap=expected_RK[:, 0] - expected_RK[:, 1],
        finite=finite,
    )


def _divergence(p_RK: NDArray[np.float64], q_RK: NDArray[np.float64]) -> NDArray[np.float64]:
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
    divergence: NDArray[np.float64] = np.maximum(sums + p_kept * among_kept, 0)
    return divergence


@dataclass(slots=True, kw_only=True)
class _Surprise:
    """Negative logarithms of the probabilities of the probes' own tokens, in nats."""

    tokens: int = 0
    ours: float = 0.0
    reference: float = 0.0

    def add(
        self, certificate: Certificate, part: slice, next_ids: list[int], logits_RV: Logits
    ) -> None:
        """Count the positions of a block that a token follows."""
        count = min(len(next_ids), len(logits_RV))
        rows = np.arange(count)
        ours = log_sum_exp(logits_RV[:count]) - logits_RV[rows, next_ids[:count]]
        reference = (certificate.log_sum_exp[part] - certificate.next_logits[part])[:count]
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
    sum_kl: float = 0.0
    max_kl: float = 0.0
    same_top1: int = 0
    near_ties: int = 0
    flips: int = 0
    non_finite: int = 0

    def add(self, differences: _Differences, near_tie: float | None) -> None:
        changed = ~differences.same_top1 & differences.finite
        near = 0 if near_tie is None else int((changed & (differences.gap <= near_tie)).sum())
        self.positions += len(differences.delta)
        self.max_abs_delta = max(self.max_abs_delta, float(differences.delta.max()))
        self.sum_kl += float(differences.kl.sum())
        self.max_kl = max(self.max_kl, float(differences.kl.max()))
        self.same_top1 += int(differences.same_top1.sum())
        self.near_ties += near
        self.flips += int(changed.sum()) - near
        self.non_finite += int((~differences.finite).sum())

    def phase(self) -> Phase:
        return Phase(
            positions=self.positions,
            max_abs_delta=self.max_abs_delta,
            mean_kl=self.sum_kl / max(1, self.positions - self.non_finite),
            max_kl=self.max_kl,
            top1_agreement=self.same_top1 / self.positions,
            near_ties=self.near_ties,
            non_finite=self.non_finite,
        )


@dataclass(slots=True, kw_only=True)
class _Comparison:
    """Everything compared so far."""

    thresholds: Thresholds
    max_delta: float
    phases: dict[PhaseName, _Tally] = field(default_factory=dict)
    whole: _Tally = field(default_factory=_Tally)
    first: Divergence | None = None

    def add(self, run: _Run, position: int, differences: _Differences) -> None:
        tally = self.phases.setdefault(run.phase, _Tally())
        tally.add(differences, self.thresholds.near_tie)
        self.whole.add(differences, self.thresholds.near_tie)
        diverged = ~differences.same_top1 | (differences.delta > self.max_delta)
        if self.first is None and diverged.any():
            self.first = Divergence(
                probe=run.probe, position=position + int(diverged.argmax()), phase=run.phase
            )

    def report(
        self, surprise: _Surprise, *, max_abs_logit: float, device: str, seconds: float
    ) -> Report:
        whole = self.whole.phase()
        perplexity, reference_perplexity = surprise.perplexities()
        return Report(
            verdict=self._verdict(whole),
            max_abs_delta=whole.max_abs_delta,
            max_abs_logit=max_abs_logit,
            mean_kl=whole.mean_kl,
            max_kl=whole.max_kl,
            top1_agreement=whole.top1_agreement,
            near_ties=whole.near_ties,
            perplexity=perplexity,
            reference_perplexity=reference_perplexity,
            non_finite=whole.non_finite,
            first_divergence=self.first,
            phases={name: tally.phase() for name, tally in self.phases.items()},
            device=device,
            onnxruntime=onnxruntime_version(),
            seconds=seconds,
        )

    def _verdict(self, whole: Phase) -> Literal["PASS", "AMBIGUOUS", "FAIL"]:
        flips = self.whole.flips if self.thresholds.near_tie is not None else 0
        if (
            whole.non_finite > 0
            or flips > 0
            or whole.max_abs_delta > self.max_delta
            or whole.mean_kl > self.thresholds.mean_kl
        ):
            return "FAIL"
        return "AMBIGUOUS" if whole.near_ties > 0 else "PASS"
