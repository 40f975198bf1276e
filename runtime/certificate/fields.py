"""What a certificate says: a reference for some probes, and how far a bundle was from it.

What is kept depends on what the graph gives:

* logits, of a vocabulary for every token: the highest ones, their ids and the logarithm of the sum
  of the exponentials of all. Enough for probabilities, at a thousandth of the size;
* logits of labels for the whole input: all of them;
* vectors, of tokens or of the whole input, and scores: the numbers themselves, of at most `ROWS`
  tokens of each probe.

Shape letters: N tokens of all probes, M tokens of all sources, P probes, R rows (positions kept of
all probes), K kept logits, E width of a vector, H height, W width and C channels of an image.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta
from numpy.typing import NDArray

from ortolan.runtime import limits
from ortolan.runtime.bundle.kinds import KINDS, OUTPUTS, ModelKind
from ortolan.runtime.bundle.manifest import KindName, Label, OutputName
from ortolan.runtime.bundle.quality import Quality, rate
from ortolan.runtime.certificate.sums import ExpectedWeights, WeightsReport
from ortolan.runtime.certificate.surroundings import Surroundings, SurroundingsReport

__all__ = [
    "ROWS",
    "Certificate",
    "Divergence",
    "Logits",
    "Phase",
    "PhaseName",
    "Probe",
    "Report",
    "Thresholds",
    "Vectors",
    "kept_positions",
]

ROWS = 32
"""Tokens of a probe whose vectors are kept: evenly spread, the first and the last among them."""

Length = Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)]
Nats = Annotated[float, Meta(gt=0, le=limits.MAX_MEAN_KL)]
Cosine = Annotated[float, Meta(gt=0, le=limits.MAX_COSINE_DISTANCE)]
Share = Annotated[float, Meta(ge=0, le=1)]
PhaseName = Literal["prefill", "decode", "chunked", "single", "batch"]


class Probe(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One input whose output is known.

    Attributes:
        length: tokens; of an image before an encoder by itself, the vectors that it becomes.
        source: of a decoder after an encoder of texts, tokens of its source.
    """

    name: Label
    length: Length
    source: Length | None = None


class Thresholds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What still counts as the same model. No bound is so wide that nothing is outside of it.

    Attributes:
        mean_kl: of the distributions, in nats, over all positions; for logits.
        mean_cosine: distance of the vectors over all of them; for vectors and scores.
        max_abs_delta: of one number, times the largest one where that is above 1; `None` where
            rounded weights move numbers, and only the mean counts.
        near_tie: distance of the two highest logits up to which either may come first; `None`
            where any token may.
    """

    mean_kl: Nats | None = None
    mean_cosine: Cosine | None = None
    max_abs_delta: Annotated[float, Meta(gt=0, le=1)] | None = None
    near_tie: Share | None = None


class Divergence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first position that differs. Positions count from 0 within a probe."""

    probe: str
    position: int
    phase: PhaseName


class Phase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Figures of one way to compute the probes; see `Report`."""

    positions: int
    max_abs_delta: float
    mean_kl: float | None
    max_kl: float | None
    top1_agreement: float | None
    near_ties: int
    non_finite: int
    mean_cosine: float | None = None
    max_cosine: float | None = None
    p99_kl: float | None = None
    p99_cosine: float | None = None


Rule = Literal["rows", "parts", "restored"]

RULES: dict[Rule, str] = {
    "rows": "{count} texts next to others and alone",
    "parts": "{count} prompts in parts and whole",
    "restored": "{count} prompt from a prefix and whole",
}
"""What a rule compares, for a person."""


class ExactReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether a text is the same, to the bit, alone and among others.

    The bundle is compared with itself, not with PyTorch: the certificate does that.

    Attributes:
        comparisons: number of ways to compute the same text.
        different: the rules that do not hold here: `rows`, `parts`, `restored`.
        tried: comparisons of each rule; a rule that says nothing about this model is missing.
    """

    comparisons: int
    different: tuple[Rule, ...]
    tried: dict[Rule, int] = {}

    @property
    def summary(self) -> str:
        """In one line."""
        if self.different:
            return f"{', '.join(self.different)} differ from the same text alone: serve mode='fast'"
        words = [RULES[rule].format(count=count) for rule, count in self.tried.items()]
        return f"the bundle against itself, to the bit: {', '.join(words)}"


class Report(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether a device computes what was exported, and how far that is from what was trained.

    Attributes:
        verdict: of the first: `PASS`; `AMBIGUOUS` when only near ties changed places; `FAIL`.
        max_abs_delta: largest difference of a kept logit, or of a number of a vector.
        max_abs_logit: largest magnitude of those of the reference.
        mean_kl: Kullback-Leibler divergence from the reference in nats, averaged over the
            positions. Computed over the kept logits, and all others as one: a lower bound of
            the whole. This and the next four: `None` where vectors are compared.
        max_kl: the largest of one position.
        top1_agreement: share of positions with the same most probable token.
        perplexity: of the probes' own tokens, each after those before it, by prefill; `None` for
            an encoder as well.
        reference_perplexity: the same of the reference.
        near_ties: positions where the two most probable tokens, nearly tied, changed places.
        non_finite: positions with an output that is not a finite number; they count in no other
            figure but `top1_agreement`.
        first_divergence: the first position, in the order of the replay, whose most probable
            token or whose difference is not within the thresholds, near ties included.
        phases: the figures of each way to compute the probes.
        onnxruntime: its version.
        thresholds: the bounds of the first.
        weights: what each computes by itself; `None` where that was not asked.
        surroundings: whether the tokenizer and the roles of ids are those that were exported;
            `None` where the certificate does not say, or that was not asked.
        exact: whether a text is the same alone and among others; `None` where that was not asked,
            or cannot be.
        p99_kl: below which 99 % of the positions are; `p99_cosine` likewise.
        text: what the probes are of, in words.
        kind: of the bundle.
        output: what was compared.
        mean_cosine: 1 minus the cosine between a vector and that of the reference, averaged; of
            scores, half their squared error relative to the reference's mean square. `None` where
            logits are compared.
        max_cosine: the largest of one vector.
    """

    verdict: Literal["PASS", "AMBIGUOUS", "FAIL"]
    max_abs_delta: float
    max_abs_logit: float
    mean_kl: float | None
    max_kl: float | None
    top1_agreement: float | None
    near_ties: int
    perplexity: float | None
    reference_perplexity: float | None
    non_finite: int
    first_divergence: Divergence | None
    phases: dict[PhaseName, Phase]
    device: str
    onnxruntime: str
    seconds: float
    text: Label
    thresholds: Thresholds
    weights: WeightsReport | None = None
    surroundings: SurroundingsReport | None = None
    exact: ExactReport | None = None
    p99_kl: float | None = None
    p99_cosine: float | None = None
    kind: KindName = "decoder"
    output: OutputName = "logits"
    mean_cosine: float | None = None
    max_cosine: float | None = None

    @property
    def device_summary(self) -> str:
        """Whether the device computes what was exported, in one line."""
        parts = [] if self.weights is None else [self.weights.summary]
        if self.surroundings is not None and self.surroundings.wrong:
            parts.append(self.surroundings.summary)
        if self.weights is None or not self.weights.wrong:
            parts.append(self._from_end_to_end)
        return f"{self._verdict_words}: {'; '.join(parts)}"

    @property
    def _verdict_words(self) -> str:
        """The verdict for a person: a near tie that changes places is within the bounds."""
        if self.verdict != "AMBIGUOUS":
            return self.verdict
        return f"PASS with {self.near_ties} near {'tie' if self.near_ties == 1 else 'ties'}"

    @property
    def _from_end_to_end(self) -> str:
        """How the whole model keeps to its bounds."""
        bounds, where = self.thresholds, self.first_divergence
        distance = OUTPUTS[self.output].distance
        if bounds.max_abs_delta is None:
            name, got, most = "mean KL", self.mean_kl, bounds.mean_kl
            if got is None:
                name, got, most = f"mean {distance}", self.mean_cosine, bounds.mean_cosine
            words = f"{self.output}: {name} {got or 0:.2g} (at most {most or 0:.2g})"
        else:
            most = bounds.max_abs_delta * max(1.0, self.max_abs_logit)
            words = f"{self.output} within {self.max_abs_delta:.1g} (at most {most:.1g})"
        if self.verdict == "PASS" or where is None:
            return words
        return f"{words}, first at {where.probe}, position {where.position}, {where.phase}"

    @property
    def quality(self) -> Quality:
        """How far the exported model is from the trained one."""
        distance = OUTPUTS[self.output].distance
        return Quality(
            word=rate(mean_kl=self.mean_kl, mean_cosine=self.mean_cosine),
            text=self.text,
            mean_kl=self.mean_kl,
            p99_kl=self.p99_kl,
            top1_agreement=self.top1_agreement,
            perplexity=self.perplexity,
            trained_perplexity=self.reference_perplexity,
            mean_cosine=self.mean_cosine,
            p99_cosine=self.p99_cosine,
            distance=UNSET if OUTPUTS[self.output].scores != "none" else distance,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Logits:
    """Of every row, what is kept of its logits.

    Attributes:
        top_ids: int32 `(R, K)`, most probable first.
        top_logits: float32 `(R, K)`.
        log_sum_exp: float32 `(R,)`.
        next_logits: float32 `(R,)`, of the token that follows in the probe; without meaning at
            the end of each. `None` where no token follows another.
    """

    top_ids: NDArray[np.int32]
    top_logits: NDArray[np.float32]
    log_sum_exp: NDArray[np.float32]
    next_logits: NDArray[np.float32] | None

    def of_labels(self, labels: int) -> NDArray[np.float32]:
        """The logits of labels in their order, `(R, L)`; NaN where one was not kept."""
        logits_RL = np.full((len(self.top_ids), max(labels, 2)), np.nan, np.float32)
        known = np.where(self.top_ids < logits_RL.shape[1], self.top_ids, 0)
        np.put_along_axis(logits_RL, known, self.top_logits, axis=-1)
        return logits_RL[:, :labels]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vectors:
    """Of every row, its vector: float32 `(R, E)`."""

    values: NDArray[np.float32]

    def of_labels(self, labels: int) -> NDArray[np.float32]:
        """The scores of labels in their order, `(R, L)`."""
        return self.values[:, :labels]


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The reference of a bundle.

    Attributes:
        thresholds: what the bundle has to keep to.
        measured: what the export measured; `None` before it did.
        reference: what PyTorch computed.
        token_ids: int32 `(N,)`, of the decoder, or of an encoder by itself; empty where that
            takes images.
        source_ids: int32 `(M,)`, of the sources that are texts; empty without any.
        images: uint8 `(P, H, W, C)`, one for each probe of an encoder of images.
        kind: of the bundle.
        output: what is compared.
        text: what the probes are of, in words.
        weights: what each weight has to compute by itself.
        surroundings: what has to be beside it; `None` where nobody took it down.
    """

    probes: tuple[Probe, ...]
    thresholds: Thresholds
    measured: Report | None
    reference: Logits | Vectors
    token_ids: NDArray[np.int32]
    text: str
    weights: ExpectedWeights = field(default_factory=ExpectedWeights)
    surroundings: Surroundings | None = None
    source_ids: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    images: NDArray[np.uint8] | None = None
    kind: KindName = "decoder"
    output: OutputName = "logits"

    @property
    def model_kind(self) -> ModelKind:
        """What bundles of this kind have in common."""
        return KINDS[self.kind]


def kept_positions(length: int, output: str) -> list[int]:
    """Of a probe, the positions that a row is kept of, ascending.

    Args:
        length: of the probe.
        output: what is compared. Where it has no positions, one stands for the whole; of vectors,
            at most `ROWS` are kept.
    """
    kind = OUTPUTS[output]
    if not kind.by_token:
        return [0]
    if kind.are_logits or length <= ROWS:
        return list(range(length))
    return [place * (length - 1) // (ROWS - 1) for place in range(ROWS)]
