"""Results of a verification: measured differences, and the verdict."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ortolan.runtime import limits
from ortolan.runtime.bundle.field_types import Label
from ortolan.runtime.bundle.kinds import OUTPUTS
from ortolan.runtime.bundle.manifest import KindName, OutputName
from ortolan.runtime.bundle.quality import Quality, rate
from ortolan.runtime.verification.surroundings import SurroundingsReport
from ortolan.runtime.verification.weight_sums import WeightsReport

Nats = Annotated[float, Meta(gt=0, le=limits.MAX_MEAN_KL)]
Cosine = Annotated[float, Meta(gt=0, le=limits.MAX_COSINE_DISTANCE)]
Share = Annotated[float, Meta(ge=0, le=1)]
PhaseName = Literal["prefill", "decode", "chunked", "single", "batch"]
GraphName = Literal["prefill", "decode"]


class Thresholds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tolerances. Each has an upper limit, so that none can accept everything.

    Attributes:
        mean_kl: KL divergence of the logits in nats, averaged over all positions, and over those
            of each graph where prompts have weights of their own.
        mean_cosine: average cosine distance, for vectors and scores.
        max_abs_delta: largest difference of one number, times the largest magnitude if that is
            above 1. `None` for rounded weights, where only the mean counts.
        near_tie: gap between the two highest logits within which either may come first. `None`
            if any token may.
    """

    mean_kl: Nats | None = None
    mean_cosine: Cosine | None = None
    max_abs_delta: Annotated[float, Meta(gt=0, le=1)] | None = None
    near_tie: Share | None = None


class Divergence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first position that differs, counted from 0 within its probe."""

    probe: str
    position: int
    phase: PhaseName


class Figures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Differences from the reference.

    Those of KL divergence and `top1_agreement` are `None` where vectors are compared, those of
    cosine distance where logits are.

    Attributes:
        max_abs_delta: largest difference of a kept logit or of a number of a vector.
        mean_kl: average KL divergence from the reference in nats. All logits that were not kept
            count as one, which makes it a lower bound.
        max_kl: the largest of one position.
        top1_agreement: share of positions with the same most probable token.
        near_ties: positions where the two most probable tokens, nearly tied, changed places.
        non_finite: positions with infinite outputs or NaN; other figures leave them out, except
            `top1_agreement`.
        mean_cosine: average of 1 minus the cosine to the reference vector; for scores, half their
            squared error relative to the reference's mean square.
        max_cosine: the largest of one vector.
        p99_kl: 99th percentile, as is `p99_cosine`.
    """

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


class Phase(Figures, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Figures for one way to compute the probes."""

    positions: int


Rule = Literal["rows", "parts", "restored"]

RULES: dict[Rule, str] = {
    "rows": "{count} sequences in a batch and alone",
    "parts": "{count} prompts in chunks and whole",
    "restored": "{count} prompt from a prefix and whole",
}
"""Comparison behind each rule, in words."""


class ExactReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether a sequence is bit-identical alone and among others: the bundle against itself.

    Attributes:
        different: rules that do not hold here.
        tried: comparisons by rule; rules that do not apply to this model are missing.
    """

    comparisons: int
    different: tuple[Rule, ...]
    tried: dict[Rule, int] = {}

    @property
    def summary(self) -> str:
        """One line for a person."""
        if self.different:
            rules = ", ".join(self.different)
            return f"{rules} differ from a sequence alone: serve with --fast (mode='fast')"
        words = [RULES[rule].format(count=count) for rule, count in self.tried.items()]
        return f"the bundle against itself, bit by bit: {', '.join(words)}"


class Report(Figures, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether a device computes the exported model, and how far that is from the trained one.

    Attributes:
        verdict: does the device compute the exported model? `PASS`; `AMBIGUOUS` if only near ties
            changed places; `FAIL`.
        max_abs_logit: largest magnitude of a number in the reference.
        perplexity: of the probes' own tokens, by prefill; `None` for encoders.
        reference_perplexity: the same in the reference.
        first_divergence: first position, in the order of the replay, with another most probable
            token (near ties included) or a difference beyond the thresholds.
        phases: figures by way to compute the probes.
        graphs: figures by graph, where prompts have weights of their own; those of `decode`
            continue caches that the prefill graph filled.
        device: where it was computed.
        onnxruntime: its version.
        weights: each weight on its own; `None` if not checked.
        surroundings: tokenizer, labels and the like; `None` if not recorded or not checked.
        exact: bit-identity alone and among others; `None` if not checked or not offered.
        text: what the probes contain, in words.
        output: what was compared.
        media: report of the encoder of images or sounds that a decoder reads; `None` without one.
        head: report of the head that predicts further tokens; `None` without one.
        texts: report of the encoder of texts that images are compared with; `None` without one.
    """

    verdict: Literal["PASS", "AMBIGUOUS", "FAIL"]
    max_abs_logit: float
    perplexity: float | None
    reference_perplexity: float | None
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
    kind: KindName = "decoder"
    output: OutputName = "logits"
    graphs: dict[GraphName, Phase] = {}
    media: "Report | None" = None
    head: "Report | None" = None
    texts: "Report | None" = None

    @property
    def largest_mean_kl(self) -> float | None:
        """The mean KL divergence of all positions, or of the graph where it is larger."""
        means = [phase.mean_kl for phase in self.graphs.values() if phase.mean_kl is not None]
        return None if self.mean_kl is None else max(self.mean_kl, *means, 0.0)

    @property
    def device_summary(self) -> str:
        """Whether the device computes the exported model, in one line."""
        parts = [] if self.weights is None else [self.weights.summary]
        if self.surroundings is not None and self.surroundings.wrong:
            parts.append(self.surroundings.summary)
        if self.weights is None or not self.weights.wrong:
            parts.append(self._model_summary)
        ties = f" ({self.near_ties} near ties)" if self.verdict == "AMBIGUOUS" else ""
        return f"{self.verdict}{ties}: {'; '.join(parts)}"

    @property
    def _model_summary(self) -> str:
        """Differences of the whole model, with their tolerance."""
        bounds, where = self.thresholds, self.first_divergence
        distance = OUTPUTS[self.output].distance
        if bounds.max_abs_delta is None:
            name, value, most = "mean KL", self.largest_mean_kl, bounds.mean_kl
            if value is None:
                name, value, most = f"mean {distance}", self.mean_cosine, bounds.mean_cosine
            words = f"{self.output}: {name} {value or 0:.2g} (at most {most or 0:.2g})"
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
        graph_kl = {name: phase.mean_kl or 0.0 for name, phase in self.graphs.items()}
        return Quality(
            word=rate(mean_kl=self.largest_mean_kl, mean_cosine=self.mean_cosine),
            text=self.text,
            mean_kl=self.mean_kl,
            p99_kl=self.p99_kl,
            top1_agreement=self.top1_agreement,
            perplexity=self.perplexity,
            trained_perplexity=self.reference_perplexity,
            mean_cosine=self.mean_cosine,
            p99_cosine=self.p99_cosine,
            distance=None if OUTPUTS[self.output].scores != "none" else distance,
            graph_kl=graph_kl or None,
        )
