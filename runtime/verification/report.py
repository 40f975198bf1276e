"""What a verification found: how far a bundle is from its certificate, and the verdict."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta

from ortolan.runtime import limits
from ortolan.runtime.bundle.kinds import OUTPUTS
from ortolan.runtime.bundle.manifest import KindName, Label, OutputName
from ortolan.runtime.bundle.quality import Quality, rate
from ortolan.runtime.verification.surroundings import SurroundingsReport
from ortolan.runtime.verification.weight_sums import WeightsReport

__all__ = ["Divergence", "ExactReport", "Phase", "PhaseName", "Report", "Rule", "Thresholds"]

Nats = Annotated[float, Meta(gt=0, le=limits.MAX_MEAN_KL)]
Cosine = Annotated[float, Meta(gt=0, le=limits.MAX_COSINE_DISTANCE)]
Share = Annotated[float, Meta(ge=0, le=1)]
PhaseName = Literal["prefill", "decode", "chunked", "single", "batch"]


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
