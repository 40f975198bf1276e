"""A certificate: PyTorch's outputs for a few probes, and the tolerances around them.

It keeps, depending on what the graph computes:

* logits over a vocabulary: the highest of each token, their ids, and the log of the sum of all
  exponentials. Enough for probabilities, at a thousandth of the size;
* logits of labels: all of them;
* vectors and scores: the numbers, of at most `ROWS` tokens of each probe.

Shape letters: N tokens of all probes, M tokens of all sources, P probes, R rows (kept positions of
all probes), K kept logits, E width of a vector, H height, W width and C channels of an image.
"""

from dataclasses import dataclass, field
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ortolan.runtime import limits
from ortolan.runtime.bundle.field_types import Label
from ortolan.runtime.bundle.kinds import KINDS, OUTPUTS, ModelKind
from ortolan.runtime.bundle.manifest import KindName, OutputName
from ortolan.runtime.verification.report import Report, Thresholds
from ortolan.runtime.verification.surroundings import Surroundings
from ortolan.runtime.verification.weight_sums import ExpectedWeights

ROWS = 32
"""Tokens per probe whose vectors are kept: evenly spread, including the first and the last."""

Length = Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)]


class Probe(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One input.

    Attributes:
        length: tokens; for an image or a wave, the vectors that the encoder makes of it.
        source: tokens of the source, for a decoder after an encoder of texts; or the vectors of a
            wave before a decoder.
        features: number of its tokens that vectors replace (`probe_vectors`), in order.
    """

    name: Label
    length: Length
    source: Length | None = None
    features: Annotated[int, Meta(ge=0, le=limits.MAX_CONTEXT)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Logits:
    """The kept logits of every row.

    Attributes:
        top_ids: int32 `(R, K)`, most probable first.
        top_logits: float32 `(R, K)`.
        log_sum_exp: float32 `(R,)`.
        next_logits: float32 `(R,)`, the logit of the probe's next token, meaningless at its last
            one. `None` if no token follows another.
    """

    top_ids: NDArray[np.int32]
    top_logits: NDArray[np.float32]
    log_sum_exp: NDArray[np.float32]
    next_logits: NDArray[np.float32] | None

    def of_labels(self, labels: int) -> NDArray[np.float32]:
        """Return logits in the order of the labels, `(R, L)`; NaN for one that was not kept."""
        logits_RL = np.full((len(self.top_ids), max(labels, 2)), np.nan, np.float32)
        ids = np.where(self.top_ids < logits_RL.shape[1], self.top_ids, 0)
        np.put_along_axis(logits_RL, ids, self.top_logits, axis=-1)
        return logits_RL[:, :labels]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vectors:
    """The vector of every row, float32 `(R, E)`."""

    values: NDArray[np.float32]

    def of_labels(self, labels: int) -> NDArray[np.float32]:
        """Return scores in the order of the labels, `(R, L)`."""
        return self.values[:, :labels]


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The reference of a bundle.

    Attributes:
        probes: names and lengths of the inputs.
        measured: what the export measured; `None` before that.
        reference: what PyTorch computed.
        token_ids: int32 `(N,)`, for the decoder or for an encoder alone; empty for images and
            waves.
        types: int32 `(N,)`, for an encoder that reads token types.
        source_ids: int32 `(M,)`, for an encoder of texts in front of a decoder.
        images: uint8 `(P, H, W, C)`, for an encoder of images.
        weights: expected outputs of each weight alone.
        surroundings: the tokenizer and the like; `None` if not recorded.
    """

    probes: tuple[Probe, ...]
    thresholds: Thresholds
    measured: Report | None
    reference: Logits | Vectors
    token_ids: NDArray[np.int32]
    text: str
    weights: ExpectedWeights = field(default_factory=ExpectedWeights)
    surroundings: Surroundings | None = None
    types: NDArray[np.int32] | None = None
    source_ids: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    images: NDArray[np.uint8] | None = None
    kind: KindName = "decoder"
    output: OutputName = "logits"

    @property
    def model_kind(self) -> ModelKind:
        """Properties of bundles of this kind."""
        return KINDS[self.kind]

    def start(self, number: int) -> int:
        """Return the place of the first token of a probe among those of all probes."""
        return sum(probe.length for probe in self.probes[:number])

    def ids(self, number: int) -> list[int]:
        """Return the tokens of a probe."""
        start = self.start(number)
        ids: list[int] = self.token_ids[start : start + self.probes[number].length].tolist()
        return ids


def kept_positions(length: int, output: str) -> list[int]:
    """Return the positions of a probe that have a row, ascending."""
    kind = OUTPUTS[output]
    if not kind.by_token:
        return [0]
    if kind.are_logits or length <= ROWS:
        return list(range(length))
    return [place * (length - 1) // (ROWS - 1) for place in range(ROWS)]
