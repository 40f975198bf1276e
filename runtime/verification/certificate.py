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
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ortolan.runtime import limits
from ortolan.runtime.bundle.kinds import KINDS, OUTPUTS, ModelKind
from ortolan.runtime.bundle.manifest import KindName, Label, OutputName
from ortolan.runtime.verification.report import Report, Thresholds
from ortolan.runtime.verification.surroundings import Surroundings
from ortolan.runtime.verification.weight_sums import ExpectedWeights

__all__ = ["ROWS", "Certificate", "Logits", "Probe", "Vectors", "kept_positions"]

ROWS = 32
"""Tokens of a probe whose vectors are kept: evenly spread, the first and the last among them."""

Length = Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)]


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
